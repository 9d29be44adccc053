"""What may run in the page, and data that cannot end its script element."""

from __future__ import annotations

import json

from megatron_nanguard.report.html.embedding import content_policy, digest, json_island

# echo -n 'alert(1)' | openssl dgst -sha256 -binary | base64
ALERT = "'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='"


def test_a_script_is_named_by_its_digest() -> None:
    assert digest("alert(1)") == ALERT


def test_the_policy_lets_listed_scripts_run_and_nothing_be_fetched() -> None:
    assert content_policy([ALERT]).split("; ") == [
        "default-src 'none'",
        f"script-src {ALERT}",
        "style-src 'unsafe-inline'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]


def test_no_text_closes_the_script_element_of_an_island() -> None:
    hostile = "</script><script>alert(1)</script><!-- & \u2028"

    text = json_island({hostile: [hostile, 1.5, None]})

    assert not set("<>&\u2028") & set(text)
    spelled = hostile.replace("\u2028", "\\u2028")
    assert json.loads(text) == {spelled: [spelled, 1.5, None]}


def test_bidirectional_control_characters_are_spelled_out() -> None:
    assert json.loads(json_island("a\u202eb\x1b")) == "a\\u202eb\\x1b"
