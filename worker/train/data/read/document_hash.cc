#include "worker/train/data/read/document_hash.h"

#include <xxhash.h>

#include <cstring>

namespace nsa::train {

DocumentHash HashOf(const Document& document) {
  const XXH128_hash_t hash =
      document.tokens.empty()
          ? XXH3_128bits(document.text.data(), document.text.size())
          : XXH3_128bits(document.tokens.data(), document.tokens.size() * sizeof(uint16_t));
  return {hash.high64, hash.low64};
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
