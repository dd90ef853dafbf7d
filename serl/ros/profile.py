"""The profile with which Fast DDS talks UDP: at the given addresses, to the given hosts, alone."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address
from pathlib import Path

from serl.system.files import write_atomic

_MOST_PARTICIPANTS = 64
"""Processes of a run on one host: 16 actors with a link each, a learner, and who looks on."""

_BUFFER_BYTES = 4 << 20
_HEARTBEAT_NS = 50_000_000

_XML = """<?xml version="1.0" encoding="UTF-8"?>
<profiles xmlns="http://www.eprosima.com/XMLSchemas/fastRTPS_Profiles">
  <transport_descriptors>
    <transport_descriptor>
      <transport_id>udp</transport_id>
      <type>UDPv4</type>
      <sendBufferSize>{buffer}</sendBufferSize>
      <receiveBufferSize>{buffer}</receiveBufferSize>
      <maxInitialPeersRange>{participants}</maxInitialPeersRange>
      <interfaceWhiteList>{addresses}</interfaceWhiteList>
    </transport_descriptor>
  </transport_descriptors>
  <participant profile_name="serl" is_default_profile="true">
    <rtps>
      <builtin>
        <discovery_config>
          <initialAnnouncements>
            <count>40</count>
            <period><nanosec>100000000</nanosec></period>
          </initialAnnouncements>
        </discovery_config>
        <!-- a listed unicast locator, even an empty one, turns multicast off -->
        <metatrafficUnicastLocatorList><locator/></metatrafficUnicastLocatorList>
        <initialPeersList>{hosts}</initialPeersList>
      </builtin>
      <userTransports><transport_id>udp</transport_id></userTransports>
      <useBuiltinTransports>false</useBuiltinTransports>
    </rtps>
  </participant>
  <!-- what was lost is noticed and sent again at a heartbeat, which is each 3 s otherwise -->
  <data_writer profile_name="serl_writer" is_default_profile="true">
    <times><heartbeatPeriod><nanosec>{heartbeat}</nanosec></heartbeatPeriod></times>
  </data_writer>
</profiles>
"""


def write_profile(
    path: Path, addresses: Sequence[IPv4Address], hosts: Sequence[IPv4Address]
) -> None:
    """Write the XML file.

    Args:
        path: of the file.
        addresses: of this host; nothing is bound to another one.
        hosts: where other participants are looked for, this host included.
    """
    text = _XML.format(
        buffer=_BUFFER_BYTES,
        heartbeat=_HEARTBEAT_NS,
        participants=_MOST_PARTICIPANTS,
        addresses="".join(f"<address>{address}</address>" for address in addresses),
        hosts="".join(
            f"<locator><udpv4><address>{host}</address></udpv4></locator>" for host in hosts
        ),
    )
    write_atomic(path, text.encode())
