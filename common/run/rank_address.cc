#include "common/run/rank_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace nsa {
namespace {

std::string_view BytesOf(const RankToken& token) {
  return {reinterpret_cast<const char*>(token.data()), token.size()};
}

std::optional<RankToken> TokenFromHex(const std::string& hex) {
  RankToken token;
  if (hex.size() != 2 * token.size() || !std::ranges::all_of(hex, absl::ascii_isxdigit)) {
    return std::nullopt;
  }
  const std::string bytes = absl::HexStringToBytes(hex);
  std::copy(bytes.begin(), bytes.end(), token.begin());
  return token;
}

// Whether an interface's address is `wanted`, whatever the port.
bool IsAddress(const sockaddr* have, const SocketAddress& wanted) {
  if (have == nullptr || have->sa_family != wanted.family()) return false;
  if (have->sa_family == AF_INET) {
    const auto* a = reinterpret_cast<const sockaddr_in*>(have);
    const auto* b = reinterpret_cast<const sockaddr_in*>(wanted.get());
    return a->sin_addr.s_addr == b->sin_addr.s_addr;
  }
  const auto* a = reinterpret_cast<const sockaddr_in6*>(have);
  const auto* b = reinterpret_cast<const sockaddr_in6*>(wanted.get());
  return std::memcmp(&a->sin6_addr, &b->sin6_addr, sizeof(a->sin6_addr)) == 0;
}

}  // namespace

std::string RankAddress::HostAndPort() const {
  const bool v6 = host.find(':') != std::string::npos;
  return v6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

std::filesystem::path MeetingFolder(const std::filesystem::path& rendezvous, int64_t generation) {
  return rendezvous / absl::StrFormat("gen-%06d", generation);
}

std::filesystem::path RankAddressFile(const std::filesystem::path& meeting, int rank) {
  return meeting / absl::StrFormat("rank-%04d.address", rank);
}

std::string FormatRankAddress(const RankAddress& address) {
  const std::string_view token = BytesOf(address.token);
  return absl::StrCat(address.host, " ", address.port, " ",
                      absl::BytesToHexString({token.data(), token.size()}), "\n");
}

std::optional<RankAddress> ParseRankAddress(std::string_view text) {
  const std::vector<std::string> words =
      absl::StrSplit(absl::string_view(text.data(), text.size()), ' ');
  uint32_t port = 0;
  if (words.size() != 3 || words[2].empty() || words[2].back() != '\n' ||
      !absl::SimpleAtoi(words[1], &port) || port == 0 || port > 65535 ||
      !ToSocketAddress(words[0], 1).ok()) {
    return std::nullopt;
  }
  const std::optional<RankToken> token = TokenFromHex(words[2].substr(0, words[2].size() - 1));
  if (!token.has_value()) return std::nullopt;
  return RankAddress{.host = words[0], .port = static_cast<uint16_t>(port), .token = *token};
}

bool SameToken(const RankToken& a, const RankToken& b) {
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

uint16_t SocketAddress::port() const {
  return ntohs(family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port
                                    : reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

absl::StatusOr<SocketAddress> ToSocketAddress(const std::string& host, uint16_t port) {
  SocketAddress address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    address.length = sizeof(*v4);
  } else if (inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    address.length = sizeof(*v6);
  } else {
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' (must be a numeric IPv4 or IPv6 address); write it as "
                        "10.0.0.2 or fd00::2",
                        absl::CHexEscape(host.substr(0, 80))));
  }
  return address;
}

absl::StatusOr<std::string> InterfaceOf(const std::string& host) {
  NSA_ASSIGN_OR_RETURN(const SocketAddress wanted, ToSocketAddress(host, 0));
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return absl::ErrnoToStatus(errno, "getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::vector<std::string> names;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (IsAddress(entry->ifa_addr, wanted)) return std::string(entry->ifa_name);
    if (std::ranges::find(names, entry->ifa_name) == names.end()) names.push_back(entry->ifa_name);
  }
  return absl::NotFoundError(absl::StrCat(host, " (none of this machine's interfaces, ",
                                          absl::StrJoin(names, ", "),
                                          ", has it); `ip address` lists those that they have"));
}

int64_t BitsPerSecondOf(const std::string& interface, const std::filesystem::path& interfaces) {
  std::ifstream file(interfaces / interface / "speed");
  int64_t megabits = 0;  // -1, or an error when it is read, if the speed is not known
  constexpr int64_t kMost = 10'000'000;
  return file >> megabits && megabits > 0 && megabits <= kMost ? megabits * 1'000'000 : 0;
}

absl::StatusOr<PortRange> ParsePortRange(const std::string& text) {
  const std::pair<std::string, std::string> ends = absl::StrSplit(text, absl::MaxSplits('-', 1));
  const bool one = !absl::StrContains(text, '-');
  uint32_t first = 0, last = 0;
  if (!absl::SimpleAtoi(ends.first, &first) ||
      !absl::SimpleAtoi(one ? ends.first : ends.second, &last) || first < 1 || last < first ||
      last > 65535) {
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' (from 1 to 65535, first to last); write it as 29500-29599",
                        absl::CHexEscape(text.substr(0, 80))));
  }
  return PortRange{static_cast<uint16_t>(first), static_cast<uint16_t>(last)};
}

}  // namespace nsa
