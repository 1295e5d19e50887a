"""The tools of an explorer that are behind its menu, and the views that are in its tabs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .waiting import expect

if TYPE_CHECKING:
    from playwright.sync_api import Locator


def view_names(root: Locator) -> list[str]:
    """Return the names of all views, in the order of their tabs."""
    names: list[str] = root.locator(".fx-views [data-view]").evaluate_all("(all) => all.map((e) => e.dataset.view)")
    return names


def view_choice(root: Locator, name: str) -> Locator:
    """Return what selects a view in its tab, shown or not."""
    return root.locator(f".fx-views [data-view={name}]")


def open_view(root: Locator, name: str) -> None:
    """Open a view, as a user does: its tab, then the view in it."""
    choice = view_choice(root, name)
    tab = root.locator(f".fx-questions [data-tab='{choice.get_attribute('data-tab')}']")
    if tab.get_attribute("aria-selected") != "true" or not root.locator(".fx-panel").is_visible():
        tab.click()
    if choice.get_attribute("aria-selected") != "true":
        choice.click()
    is_open(root, name)


def is_open(root: Locator, name: str) -> None:
    """Wait until a view is open."""
    expect(view_choice(root, name)).to_have_attribute("aria-selected", "true")
    expect(root.locator(".fx-panel")).to_be_visible()


def in_menu(root: Locator, name: str) -> Locator:
    """Return a button of the menu, shown or not."""
    return root.locator(".fx-menu").get_by_role("button", name=name, exact=True, include_hidden=True)


def tool(root: Locator, name: str) -> Locator:
    """Return a button of the menu, which is open until something in it is chosen."""
    open_menu(root)
    return in_menu(root, name)


def open_menu(root: Locator) -> None:
    """Open the menu, unless it is open."""
    if not root.locator(".fx-menu").is_visible():
        root.get_by_role("button", name="More", exact=True).click()


def colour_by(root: Locator, value: str) -> None:
    """Choose a colouring in the menu, and close it."""
    open_menu(root)
    choice = root.get_by_label("Colour")
    choice.select_option(value)
    choice.press("Escape")
    expect(root.locator(".fx-menu")).to_be_hidden()
