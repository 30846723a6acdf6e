// Where a rank listens for the rank before it. Each rank writes its address into the rendezvous
// folder (run_dir.h) as one line of text, host, port and token:
//
//   10.0.0.2 41234 9f86d081884c7d659a2feaa0c55ad015
//
// If the next rank runs on another machine, the agents carry the line through the coordinator. And
// how long ranks wait for each other.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace nsa {

// Random; a connection that does not send it first is refused.
using RankToken = std::array<unsigned char, 16>;

struct RankAddress {
  std::string host;  // numeric, IPv4 or IPv6
  uint16_t port = 0;
  RankToken token = {};

  std::string HostAndPort() const;  // "10.0.0.2:41234", "[fd00::2]:41234"
};

// Where the ranks of a generation meet: <rendezvous folder>/gen-000003.
std::filesystem::path MeetingFolder(const std::filesystem::path& rendezvous, int64_t generation);

// <meeting folder>/rank-0003.address.
std::filesystem::path RankAddressFile(const std::filesystem::path& meeting, int rank);

// The line of text, and back; nothing for any other text.
std::string FormatRankAddress(const RankAddress& address);
std::optional<RankAddress> ParseRankAddress(std::string_view text);

// Compares in a time that does not depend on where the tokens differ.
bool SameToken(const RankToken& a, const RankToken& b);

// As the kernel takes it.
struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  uint16_t port() const;
};

// InvalidArgument unless `host` is a numeric address.
absl::StatusOr<SocketAddress> ToSocketAddress(const std::string& host, uint16_t port);

// The network interface of this machine that has the address, e.g. "eth1". NotFound if none has it;
// InvalidArgument unless it is numeric.
absl::StatusOr<std::string> InterfaceOf(const std::string& host);

// The speed that the kernel reports for a network interface, in bits a second; 0 if none, as
// for loopback, or for a cable that is unplugged. May take as long as the driver of the card takes.
int64_t BitsPerSecondOf(const std::string& interface,
                        const std::filesystem::path& interfaces = "/sys/class/net");

// TCP ports, first to last, both included.
struct PortRange {
  uint16_t first = 0;
  uint16_t last = 0;
};

// Reads "29500-29599" or "29500". InvalidArgument for anything else; 0 is no port.
absl::StatusOr<PortRange> ParsePortRange(const std::string& text);

// A rank waits this long for the others, to meet them and in each collective; then it ends with
// PEER_LOST. `hang_timeout` is restart.hang_timeout_seconds. The coordinator acts earlier: at
// hang_timeout it takes stack dumps of all ranks, and then ends them (server/decide/hang_policy.h).
// So no rank has left when the stacks are taken. docs/runbook.md has all timeouts in their order.
inline absl::Duration PeerTimeout(absl::Duration hang_timeout) {
  return hang_timeout + absl::Seconds(10);
}

}  // namespace nsa
