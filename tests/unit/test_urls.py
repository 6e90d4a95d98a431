"""Canonical URLs: one spelling for one address, and nothing guessed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.adapters.proxies.urls import DEFAULT_PORTS, UnusableURL, canonical_url
from rollbook.events import RollbookError

SAFE = st.sampled_from("abcXYZ019-._~%:!$&'()*+,;=")


@pytest.mark.parametrize(
    ("given_url", "canonical"),
    [
        ("http://host:8000", "http://host:8000"),
        ("http://host:8000/", "http://host:8000"),
        ("HTTP://Host.Example:8000", "http://host.example:8000"),
        ("http://host:80", "http://host"),
        ("https://host:443/v1/", "https://host/v1"),
        ("https://host:80", "https://host:80"),
        ("http://host:", "http://host"),
        ("http://host:08000", "http://host:8000"),
        ("http://host/Path/To", "http://host/Path/To"),
        ("http://host//", "http://host"),
        ("http://host?", "http://host"),
        ("http://[2001:DB8:0::1]:8000", "http://[2001:db8::1]:8000"),
        ("http://[::ffff:10.0.0.1]", "http://[::ffff:a00:1]"),
        ("http://my_worker:1", "http://my_worker:1"),
        ("grpc://host:20000", "grpc://host:20000"),
    ],
)
def test_one_spelling(given_url, canonical):
    assert canonical_url(given_url) == canonical


@pytest.mark.parametrize(
    ("given_url", "why"),
    [
        ("host:8000", "must begin with http://"),
        ("127.0.0.1:8000", "must begin with http://"),
        ("//host:8000", "must begin with http://"),
        ("http:host", "must begin with http://"),
        ("ftp://host", "must begin with http://"),
        ("", "must begin with http://"),
        ("http://", "'' is not a host"),
        ("http://:8000", "'' is not a host"),
        ("http://-host", "'-host' is not a host"),
        ("http://ho*st", "'ho*st' is not a host"),
        ("http://host:0", "port 0"),
        ("http://host:65536", "Port out of range"),
        ("http://host:8o", "Port could not be cast"),
        ("http://host?a=1", "a query or a fragment"),
        ("http://host#a", "a query or a fragment"),
        ("http://ho st", "no spaces"),
        ("http://host\n", "no spaces"),
        ("http://höst", "outside ASCII"),
        ("http://[::1", "Invalid IPv6 URL"),
        ("http://[nonsense]", "not"),
        ("http://[fe80::1%25eth0]:1", "zone"),
    ],
)
def test_what_cannot_be_a_url_is_refused_with_the_reason(given_url, why):
    with pytest.raises(UnusableURL) as caught:
        canonical_url(given_url)
    assert why in str(caught.value)
    assert "write it as http://host:port" in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, RollbookError)


@pytest.mark.parametrize(
    "url", ["http://user:hunter2@host", "http://hunter2@host:1/path", "user:hunter2//hunter2@host"]
)
def test_credentials_are_refused_and_not_repeated(url):
    with pytest.raises(UnusableURL) as caught:
        canonical_url(url)
    assert "hunter2" not in str(caught.value)


@given(
    scheme=st.sampled_from(sorted(DEFAULT_PORTS)).flatmap(lambda s: st.sampled_from([s, s.upper()])),
    host=st.one_of(
        st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,20}[A-Za-z0-9])?", fullmatch=True),
        st.ip_addresses(v=4).map(str),
        st.ip_addresses(v=6).map(lambda address: f"[{address}]"),
    ),
    port=st.one_of(st.just(""), st.integers(1, 65535).map(lambda port: f":{port}")),
    path=st.lists(st.text(SAFE, max_size=5), max_size=4).map(lambda parts: "".join("/" + part for part in parts)),
)
def test_canonical_is_idempotent_and_says_the_same_place(scheme, host, port, path):
    canonical = canonical_url(f"{scheme}://{host}{port}{path}")
    assert canonical_url(canonical) == canonical
    assert canonical_url(canonical + "/") == canonical
    assert canonical.startswith(f"{scheme.lower()}://")
    assert not canonical.endswith("/")
    assert canonical.endswith(path.rstrip("/"))


@given(st.text(max_size=60))
def test_any_text_is_spelled_once_or_refused(text):
    for url in (text, f"http://{text}"):
        try:
            canonical = canonical_url(url)
        except UnusableURL:
            continue
        assert canonical_url(canonical) == canonical
