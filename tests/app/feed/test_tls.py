"""Nodes of a rules service that speaks TLS."""

from __future__ import annotations

import pytest

from sluicegate.app.tls import TlsFiles
from sluicegate.errors import ConfigurationError

pytestmark = pytest.mark.slow


@pytest.fixture
async def control(make_control, authority):
    """A service with one version that asks clients for a certificate of the authority."""
    certificate, key = authority.issue("control")
    made = await make_control(tls=TlsFiles(certificate, key, authority.path))
    await made.put("5/minute")
    return made


async def test_both_sides_have_certificates(control, make_node, authority, until):
    """A node that trusts the service's authority, and brings a certificate of its own where one is asked for, follows it as any other."""
    certificate, key = authority.issue("node")
    node = make_node(control.url, ca=authority.path, certificate=certificate, key=key)
    await node.feed.begin()
    node.run()
    await control.put("6/minute")
    await until(lambda: node.limiter.version == 2)


async def test_a_service_that_nobody_vouches_for(control, make_node, authority, other_authority):
    """A service with a certificate of another authority is told nothing, not even the token, and the node says why."""
    certificate, key = authority.issue("node")
    node = make_node(control.url, ca=other_authority.path, certificate=certificate, key=key, wait_s=0.3)
    with pytest.raises(ConfigurationError, match="certificate verify failed"):
        await node.feed.begin()


async def test_a_node_without_a_certificate(control, make_node, authority):
    """A node that brings none where one is asked for does not get in."""
    node = make_node(control.url, ca=authority.path, wait_s=0.3)
    with pytest.raises(ConfigurationError, match="there are no rules to begin with"):
        await node.feed.begin()


async def test_a_renewed_certificate_of_a_node(control, make_node, authority, other_authority, until):
    """A node whose certificate is not taken any more gets in with the one that takes its place, without a restart; half of a renewal changes nothing."""
    certificate, key = other_authority.issue("node")
    node = make_node(control.url, ca=authority.path, certificate=certificate, key=key, wait_s=0.0, first=True)
    node.run()
    await until(lambda: node.node.standing.connected is False)
    new_certificate, new_key = authority.issue("renewed")
    certificate.write_bytes(new_certificate.read_bytes())
    failed = node.feed.client.failed
    await until(lambda: node.feed.client.failed > failed)
    assert not node.node.standing.connected
    key.write_bytes(new_key.read_bytes())
    await until(lambda: node.node.standing.connected)
    await until(lambda: node.limiter.version == 1)


@pytest.mark.parametrize("wrong", ["ca", "certificate", "key"])
def test_files_that_cannot_be_used(make_node, authority, tmp_path, wrong):
    """A file that is missing, or holds something else, is named with its flag before anything is asked."""
    certificate, key = authority.issue("node")
    flags = {"ca": "--control-ca", "certificate": "--control-cert", "key": "--control-cert"}
    for file in (tmp_path / "missing", tmp_path / "text"):
        (tmp_path / "text").write_text("not a certificate")
        given = {"ca": authority.path, "certificate": certificate, "key": key} | {wrong: file}
        with pytest.raises(ConfigurationError, match=flags[wrong]) as raised:
            make_node("https://127.0.0.1:9", **given)
        assert str(file) in str(raised.value)
