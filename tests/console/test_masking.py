"""Secrets never leave, and what merely sounds like one stays readable."""

from __future__ import annotations

import pytest

from console.masking import MASK, is_secret, mask_argv, mask_env, mask_text


@pytest.mark.parametrize(
    "key",
    ["--api-key", "--admin-api-key", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "db_password", "MY_SECRET"],
)
def test_secret_keys(key: str) -> None:
    assert is_secret(key)


@pytest.mark.parametrize(
    "key",
    [
        "--num-draft-tokens",
        "--speculative-num-draft-tokens",
        "--tokenizer-path",
        "--max-total-tokens",
        "PATH",
        "KEYBOARD",
        "--port",
        "SSH_AUTH_SOCK",
    ],
)
def test_keys_that_only_sound_like_one(key: str) -> None:
    assert not is_secret(key)


def test_argv_is_masked_in_both_forms() -> None:
    argv = ["python", "--api-key", "abc", "--admin-api-key=def", "--port", "1", "--skip-key"]
    assert mask_argv(argv) == ("python", "--api-key", MASK, f"--admin-api-key={MASK}", "--port", "1", "--skip-key")


def test_env_and_text() -> None:
    assert mask_env({"HF_TOKEN": "x", "A": "1"}) == {"HF_TOKEN": MASK, "A": "1"}
    assert "hunter2" not in mask_text("proxy http://me:hunter2@box:1/ and hf_abcdefghijklmnopqrst")
