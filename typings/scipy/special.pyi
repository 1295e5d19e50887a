import numpy as np

digamma: np.ufunc
erf: np.ufunc
erfc: np.ufunc
erfcinv: np.ufunc
erfinv: np.ufunc
expit: np.ufunc
gamma: np.ufunc
gammaln: np.ufunc
log_ndtr: np.ufunc
ndtr: np.ufunc
ndtri: np.ufunc
