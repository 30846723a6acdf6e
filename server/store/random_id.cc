#include "server/store/random_id.h"

#include <sys/random.h>

namespace nsa::server {

std::string RandomId(const std::string& prefix) {
  constexpr char kBase32[] = "abcdefghijklmnopqrstuvwxyz234567";
  unsigned char bytes[12];
  // For up to 256 bytes getrandom() returns all of them, and it does not fail once the kernel has
  // booted.
  while (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) {
  }
  std::string id = prefix;
  for (const unsigned char byte : bytes) id += kBase32[byte % 32];
  return id;
}

}  // namespace nsa::server
