#include "common/checkpoint/content_hash.h"

#include <xxhash.h>

#include "absl/strings/str_format.h"

namespace nsa {

struct ContentHash::State {
  State() : hash(XXH3_createState()) { XXH3_128bits_reset(hash); }
  ~State() { XXH3_freeState(hash); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  XXH3_state_t* const hash;
};

ContentHash::ContentHash() : state_(std::make_unique<State>()) {}
ContentHash::~ContentHash() = default;

void ContentHash::Add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->hash, bytes.data(), bytes.size());
}

std::string ContentHash::Hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->hash);
  return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
}

}  // namespace nsa
