"""A browser for one person: signs in at Keycloak, as a person would who has its form before them.

`BROWSER="python sign_in.py NAME PASSWORD %s"` makes it the browser that `rung login` opens.
"""

import html
import re
import sys
import urllib.parse
import urllib.request
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final

_FORM: Final = re.compile(r'<form[^>]*id="kc-form-login"[^>]*action="([^"]+)"')


def sign_in(name: str, password: str, url: str) -> str:
    """Open an address, fill in the provider's form, and return the page that follows."""
    local = DefaultCookiePolicy(secure_protocols=("http", "https"))  # browsers trust the loopback
    cookies = urllib.request.HTTPCookieProcessor(CookieJar(local))
    browser = urllib.request.build_opener(cookies)
    with browser.open(url, timeout=60) as answer:
        page = answer.read().decode()
    form = _FORM.search(page)
    if form is None:
        raise SystemExit(f"there is no form to sign in at {url}")
    fields = urllib.parse.urlencode({"username": name, "password": password, "credentialId": ""})
    with browser.open(html.unescape(form[1]), fields.encode(), timeout=60) as answer:
        shown: str = answer.read().decode()
    return shown


if __name__ == "__main__":
    sign_in(*sys.argv[1:])
