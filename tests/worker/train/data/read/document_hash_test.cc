#include "worker/train/data/read/document_hash.h"

#include <xxhash.h>

#include <vector>

#include "gmock/gmock.h"

namespace nsa::train {
namespace {

DocumentHash HashOfTokens(std::vector<Token> tokens) {
  Document document;
  document.tokens = std::move(tokens);
  return HashOf(document);
}

// What is held out must not change: prepared data and jobs of earlier versions have these hashes.
TEST(DocumentHash, OfSmallTokensIsThatOfTheirUint16) {
  for (const size_t count : {1, 5, 4096, 4097, 10000}) {
    std::vector<Token> tokens;
    std::vector<uint16_t> narrow;
    for (size_t i = 0; i < count; ++i) {
      narrow.push_back(static_cast<uint16_t>(i * 7919 % 65536));
      tokens.push_back(narrow.back());
    }
    narrow.back() = 65535;
    tokens.back() = 65535;
    const XXH128_hash_t wanted = XXH3_128bits(narrow.data(), narrow.size() * sizeof(uint16_t));
    EXPECT_EQ(HashOfTokens(tokens), DocumentHash(wanted.high64, wanted.low64)) << count;
  }
}

TEST(DocumentHash, OfALargeTokenIsThatOfNoOtherDocument) {
  const DocumentHash large = HashOfTokens({70000, 3});
  EXPECT_EQ(large, HashOfTokens({70000, 3}));
  EXPECT_NE(large, HashOfTokens({70000 - 65536, 3}));                    // cut to 16 bits
  EXPECT_NE(large, HashOfTokens({70000 % 65536, 70000 / 65536, 3, 0}));  // its halves
}

}  // namespace
}  // namespace nsa::train
