#include "worker/train/data/read/document_hash.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

namespace nsa::train {
namespace {

constexpr size_t kTokensAtATime = 4096;  // tokens
constexpr XXH64_hash_t kSeed4 = 4;       // no document of uint32 has the hash of one of uint16

struct FreeState {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

XXH128_hash_t HashOfTokens(std::span<const Token> tokens) {
  const bool wide = *std::max_element(tokens.begin(), tokens.end()) >= 1 << 16;
  const int width = wide ? 4 : 2;
  const std::unique_ptr<XXH3_state_t, FreeState> state(XXH3_createState());
  XXH3_128bits_reset_withSeed(state.get(), wide ? kSeed4 : 0);
  std::vector<std::byte> bytes(kTokensAtATime * static_cast<size_t>(width));
  while (!tokens.empty()) {
    const auto some = tokens.first(std::min(tokens.size(), kTokensAtATime));
    PackTokens(some, width, bytes.data());
    XXH3_128bits_update(state.get(), bytes.data(), some.size() * static_cast<size_t>(width));
    tokens = tokens.subspan(some.size());
  }
  return XXH3_128bits_digest(state.get());
}

}  // namespace

DocumentHash HashOf(const Document& document) {
  const XXH128_hash_t hash = document.tokens.empty()
                                 ? XXH3_128bits(document.text.data(), document.text.size())
                                 : HashOfTokens(document.tokens);
  return {hash.high64, hash.low64};
}

bool IsHeldOut(const DocumentHash& hash, double fraction) {
  return static_cast<double>(hash.second) < std::ldexp(fraction, 64);
}

void AppendHash(const DocumentHash& hash, std::string* to) {
  XXH128_canonical_t stored;
  XXH128_canonicalFromHash(&stored, {.low64 = hash.second, .high64 = hash.first});
  to->append(reinterpret_cast<const char*>(stored.digest), sizeof(stored.digest));
}

DocumentHash StoredHash(std::string_view bytes) {
  XXH128_canonical_t stored;
  std::memcpy(stored.digest, bytes.data(), sizeof(stored.digest));
  const XXH128_hash_t hash = XXH128_hashFromCanonical(&stored);
  return {hash.high64, hash.low64};
}

}  // namespace nsa::train
