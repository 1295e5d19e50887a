"""A certificate as static HTML: the verdict, the savings of a cheaper plan, and the costs of every plan."""

from collections.abc import Iterable
from xml.etree.ElementTree import Element

from fuser_lab.report.html import fragment
from fuser_lab.report.markup import element
from fuser_lab.report.units import bytes_label
from fuser_lab.segmentation import Certificate


def certificate_html(certificate: Certificate) -> str:
    """Return a certificate for a notebook's output."""
    parts = [_headline(certificate), *(element("p", note, css="fl-note") for note in certificate.notes)]
    if certificate.known < certificate.cost:
        saved = [(certificate.time_text(entry.cost), entry.text) for entry in certificate.missed_shown]
        if saved:
            parts.append(_sentences("what a cheaper plan saves", saved, opened=True))
    paid = ((certificate.time_text(term.cost), term.text) for term in certificate.terms if term.cost)
    parts.append(_sentences("what every plan pays", paid, opened=certificate.is_optimal))
    return fragment(*parts)


def _headline(certificate: Certificate) -> Element:
    moved = sum(segment.read + segment.written for segment in certificate.segments)
    facts = [
        (certificate.total_text(certificate.cost), "cost"),
        (certificate.total_text(certificate.bound), "bound: no plan costs less"),
        *([(certificate.total_text(certificate.known), "known")] if certificate.known < certificate.cost else []),
        (bytes_label(moved), "read and written"),
        (str(certificate.launches), "launches" if certificate.launches != 1 else "launch"),
    ]
    shown = [element("span", element("b", value), f" {name}", css="fl-fact") for value, name in facts]
    model = element("span", certificate.model_text, css="fl-note")
    return element("div", element("span", certificate.status, css="fl-title"), *shown, model, css="fl-headline")


def _sentences(head: str, rows: Iterable[tuple[str, str]], *, opened: bool) -> Element:
    items = [element("li", element("b", amount), f" {text}") for amount, text in rows]
    details = element("details", element("summary", head), element("ol", *items, css="fl-decisions"))
    if opened:
        details.set("open", "open")
    return details
