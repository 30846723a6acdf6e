#include "common/http/public_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

namespace nsa {
namespace {

struct Block {
  uint32_t address;
  int bits;
};

// The blocks of IPv4 that are not globally reachable, in the registry of IANA (RFC 6890).
constexpr Block kSpecial[] = {
    {0x00000000, 8},   // this network
    {0x0a000000, 8},   // private
    {0x64400000, 10},  // shared, of carriers
    {0x7f000000, 8},   // loopback
    {0xa9fe0000, 16},  // link-local, also the metadata of clouds
    {0xac100000, 12},  // private
    {0xc0000000, 24},  // protocol assignments
    {0xc0a80000, 16},  // private
    {0xc6120000, 15},  // benchmarks
    {0xe0000000, 3},   // multicast and reserved
};

bool IsPublic4(uint32_t address) {
  return std::none_of(std::begin(kSpecial), std::end(kSpecial), [&](const Block& block) {
    return (address ^ block.address) >> (32 - block.bits) == 0;
  });
}

uint32_t Word(const in6_addr& address, size_t byte) {
  uint32_t word = 0;
  std::memcpy(&word, address.s6_addr + byte, sizeof(word));
  return ntohl(word);
}

// Global unicast is 2000::/3. Of it, 2002::/16 has an IPv4 address in it, and 2001::/23 is special.
bool IsPublic6(const in6_addr& address) {
  if (IN6_IS_ADDR_V4MAPPED(&address)) return IsPublic4(Word(address, 12));
  if (Word(address, 0) == 0x0064ff9b && Word(address, 4) == 0 && Word(address, 8) == 0) {
    return IsPublic4(Word(address, 12));  // 64:ff9b::/96, translated to IPv4
  }
  if (address.s6_addr[0] >> 5 != 1) return false;
  if (Word(address, 0) >> 16 == 0x2002) return IsPublic4(Word(address, 2));
  return Word(address, 0) >> 9 != 0x20010000 >> 9;
}

}  // namespace

bool IsPublicAddress(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    sockaddr_in four{};
    std::memcpy(&four, &address, sizeof(four));
    return IsPublic4(ntohl(four.sin_addr.s_addr));
  }
  if (address.sa_family != AF_INET6) return false;
  sockaddr_in6 six{};
  std::memcpy(&six, &address, sizeof(six));
  return IsPublic6(six.sin6_addr);
}

}  // namespace nsa
