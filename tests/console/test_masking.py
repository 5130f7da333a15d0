"""Secrets never leave, and what merely sounds like one stays readable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.masking import MASK, is_secret, mask_argv, mask_env, mask_json, mask_text


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


@pytest.mark.parametrize(
    "text",
    [
        "server_args=ServerArgs(model_path='/m', api_key='S3CRET', admin_api_key=None, port=3)",
        "server_args={'model_path': '/m', 'api_key': 'S3CRET', 'port': 3}",
        r"ServerArgs(api_key='it\'s S3CRET, with \"marks\"', port=3)",
        "non-default args: {'api_key': ['other', 'S3CRET'], 'port': 3}",
        "python -m sglang.launch_server --api-key S3CRET --port 3",
        "python -m sglang.launch_server --admin-api-key=S3CRET --port 3",
        "its command line is `python --api-key S3CRET`, recorded `python`",
        "argv is ['--api-key', 'S3CRET', '--port', '3']",
        "VLLM_API_KEY=S3CRET vllm serve",
        "Authorization: Bearer S3CRET",
    ],
)
def test_a_secret_named_in_a_text_is_masked_and_the_rest_stays(text: str) -> None:
    masked = mask_text(text)
    assert MASK in masked and "S3CRET" not in masked
    assert masked.count("port") == text.count("port") and masked[:6] == text[:6]
    assert mask_text(masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        "Decode batch, #running-req: 1, #token: 9, #new-token: 4, token usage: 0.01, accept len: 2.17",
        "{'eos_token': '</s>', 'pad_token': None, 'api_key': None}",
        "ServerArgs(api_key=None, tokenizer_path='/m')",
        "it wants an API key; set api-key in [server.args]",
        "--api-key takes a value",
        "KeyError: 'lm_head.weight'",
    ],
)
def test_a_text_without_a_secret_stays_as_it_is(text: str) -> None:
    assert mask_text(text) == text


@given(st.text(alphabet="ak-_=' :\"[]\\piey,", max_size=60))
def test_no_text_stops_the_masking(text: str) -> None:
    assert isinstance(mask_text(f"--api-key {text} api_key='{text}"), str)


def test_a_list_of_words_is_masked_as_a_command() -> None:
    assert mask_json({"argv": ["x", "--api-key", "S3CRET"], "ids": [1, 2]}) == {
        "argv": ["x", "--api-key", MASK],
        "ids": [1, 2],
    }
