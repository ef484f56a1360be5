"""Secrets from files and from the environment: what is refused, and that no message shows them."""

from pathlib import Path

import pytest

from tidemark import BadSecret, Secret, secret_environment, secret_file

KEY = "0123456789abcdef"


def key_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "mask.key"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_secret_is_the_text_without_the_white_space_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASK_KEY", f"{KEY}\n")
    assert secret_file(key_file(tmp_path, f" {KEY}\n")) == secret_environment("MASK_KEY") == Secret(KEY.encode())


@pytest.mark.parametrize(("text", "mode"), [("short", 0o600), (KEY, 0o604), (KEY * 1000, 0o600)])
def test_a_file_that_is_unfit_is_refused_without_its_text(tmp_path: Path, text: str, mode: int) -> None:
    with pytest.raises(BadSecret, match=r"mask\.key") as raised:
        secret_file(key_file(tmp_path, text, mode))
    assert text not in f"{raised.value} {raised.value.hint}"


def test_a_missing_secret_is_refused_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(BadSecret, match="No such file"):
        secret_file(tmp_path / "none")
    with pytest.raises(BadSecret, match="the environment variable NO_SUCH_KEY"):
        secret_environment("NO_SUCH_KEY")
    monkeypatch.setenv("NO_SUCH_KEY", "short")
    with pytest.raises(BadSecret, match="has 5 bytes; it must have 16"):
        secret_environment("NO_SUCH_KEY")
