"""The lab: measurements that are kept, compared and queried."""
