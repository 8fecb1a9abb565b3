"""The folder of a federation, its configuration and its keys."""

import ssl
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from fedgram.core.errors import FedgramError, InputError
from fedgram.deployment.folder import FederationConfig, make_folder, open_folder
from fedgram.deployment.keys import free_port, read_private_key, read_public_key, write_device_key


def test_a_folder_is_made_once_and_keeps_its_secrets(tmp_path: Path) -> None:
    home = make_folder(tmp_path / "fed", FederationConfig(host="fed.example", port=9000), ("10.0.0.7",))
    assert open_folder(tmp_path / "fed").config == home.config
    assert home.address == "fed.example:9000"
    with pytest.raises(FedgramError, match="already holds a federation"):
        make_folder(tmp_path / "fed", FederationConfig())
    for secret in ("ca.key", "server.pem"):
        assert stat.S_IMODE((home.server / secret).stat().st_mode) == 0o600
    assert stat.S_IMODE(home.server.stat().st_mode) == 0o700
    certificate = x509.load_pem_x509_certificate(home.server_pair.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"localhost", "fed.example"} <= set(names.get_values_for_type(x509.DNSName))
    assert "10.0.0.7" in map(str, names.get_values_for_type(x509.IPAddress))
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(home.authority.read_bytes()))
    context = ssl.create_default_context(cafile=home.authority)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_cert_chain(home.server_pair)


def test_a_wrong_setting_is_refused_with_the_file_in_one_short_line(tmp_path: Path) -> None:
    make_folder(tmp_path / "fed", FederationConfig())
    path = tmp_path / "fed" / "federation.toml"
    path.write_text(path.read_text().replace("127.0.0.1", "1" * 5000))
    with pytest.raises(InputError, match=r"federation.toml: .* is not a host name") as refused:
        open_folder(tmp_path / "fed")
    assert len(str(refused.value)) < 300 + len(str(path))


@pytest.mark.parametrize("name", ["", "a b", "-a", "a_b", "x" * 40])
def test_names_that_flower_does_not_take_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(FedgramError, match="letters, digits and hyphens"):
        make_folder(tmp_path / "fed", FederationConfig(name=name))


@pytest.mark.parametrize("host", ["", "bad host", "https://x.org:1", "münchen.de", "-a.org"])
def test_what_is_no_host_is_refused_before_anything_is_made(tmp_path: Path, host: str) -> None:
    with pytest.raises(FedgramError, match="is not a host name or IP address"):
        FederationConfig(host=host)
    with pytest.raises(FedgramError, match="is not a host name or IP address"):
        make_folder(tmp_path / "fed", FederationConfig(), (host,))
    assert not (tmp_path / "fed").exists()


def test_nobodys_files_are_written_over_and_no_sum_of_one_is_made(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    with pytest.raises(FedgramError, match="app: already exists"):
        make_folder(tmp_path, FederationConfig())
    with pytest.raises(FedgramError, match="at least 2"):
        FederationConfig(masked_with=1)


def test_the_app_is_one_that_flower_takes(tmp_path: Path) -> None:
    from flwr.cli.build import build_fab_from_disk
    from flwr.cli.config_utils import load_and_validate

    home = make_folder(tmp_path / "fed", FederationConfig(tls=False))
    config, warnings = load_and_validate(home.app / "pyproject.toml")
    assert not warnings
    assert config["project"]["name"] == "federation"
    assert build_fab_from_disk(home.app) == build_fab_from_disk(home.app)  # nodes compare it with their own


def test_a_devices_key_is_made_once(tmp_path: Path) -> None:
    write_device_key(tmp_path / "device-1")
    public = read_public_key(tmp_path / "device-1" / "key.pub")
    write_device_key(tmp_path / "device-1")
    assert read_public_key(tmp_path / "device-1" / "key.pub") == public
    assert stat.S_IMODE((tmp_path / "device-1" / "key").stat().st_mode) == 0o600
    read_private_key(tmp_path / "device-1" / "key")
    (tmp_path / "device-1" / "key.pub").unlink()
    write_device_key(tmp_path / "device-1")
    assert read_public_key(tmp_path / "device-1" / "key.pub") == public
    (tmp_path / "other.pub").write_text("ssh-rsa nonsense")
    for path in (tmp_path / "other.pub", tmp_path / "device-1" / "key"):
        with pytest.raises(FedgramError, match="is not a public key"):
            read_public_key(path)
    (tmp_path / "device-1" / "key").write_text("junk")
    with pytest.raises(FedgramError, match="is not a private key"):
        write_device_key(tmp_path / "device-1")


def test_commands_refuse_what_is_no_federation(tmp_path: Path, refused: Callable[..., str], fedgram: Any) -> None:
    assert "is not a federation's folder" in refused("federation", "serve", tmp_path)
    fedgram("federation", "init", tmp_path / "fed", "--no-tls", "--port", free_port())
    assert "without TLS" in refused("federation", "serve", tmp_path / "fed", "--host", "0.0.0.0")
    assert "no such file" in refused("federation", "join", tmp_path / "fed", "--data", tmp_path / "none.sqlite")
    assert "serving" in fedgram("federation", "status", tmp_path / "fed")
    (tmp_path / "fed" / "federation.toml").write_text("nmae = 'x'\n")
    assert "did you mean name?" in refused("federation", "status", tmp_path / "fed")
    assert threading.active_count() < 20
