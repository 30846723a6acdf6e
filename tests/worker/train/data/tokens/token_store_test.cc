#include "worker/train/data/tokens/token_store.h"

#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/data/data_files.h"
#include "tests/worker/train/data/held_tokens.h"
#include "worker/train/data/tokens/token_map.h"

namespace nsa::train {
namespace {

using testing::ElementsAre;

std::vector<int32_t> TokensOf(const TokenStore& store) {
  std::vector<int32_t> tokens(static_cast<size_t>(store.size()));
  EXPECT_OK(store.Copy(0, tokens));
  return tokens;
}

// A file of the tokens 0, 1, 2, … of `width` bytes.
std::shared_ptr<const TokenMap> Map(const TempDir& dir, int width, int count) {
  std::string bytes;
  for (int token = 0; token < count; ++token) {
    for (int byte = 0; byte < width; ++byte) bytes += static_cast<char>(token >> (8 * byte));
  }
  const auto path = dir / ("map-" + std::to_string(width));
  Write(path, bytes);
  const auto map = TokenMap::Open(path, width, count);
  EXPECT_OK(map);
  return *map;
}

TEST(TokenMap, ReadsTokensOfOneTwoAndFourBytes) {
  const TempDir dir;
  for (const int width : {1, 2, 4}) {
    const auto map = Map(dir, width, width == 1 ? 256 : width == 2 ? 65536 : 70000);
    std::vector<int32_t> tokens(3);
    EXPECT_OK(map->Copy(map->size() - 3, tokens));
    const auto last = static_cast<int32_t>(map->size() - 1);
    EXPECT_THAT(tokens, ElementsAre(last - 2, last - 1, last)) << width;
  }
}

TEST(TokenMap, RefusesAnotherLength) {
  const TempDir dir;
  Write(dir / "a", "12345");
  EXPECT_THAT(TokenMap::Open(dir / "a", 2, 2), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(TokenMap::Open(dir / "none", 2, 2), StatusIs(absl::StatusCode::kNotFound));
}

TEST(TokenStore, JoinsTokensThatAreHeldAndTokensThatAreMapped) {
  const TempDir dir;
  const auto map = Map(dir, 2, 1000);
  HeldShards held(/*vocab=*/65536);
  TokenStore store;
  Append(std::vector<Token>{60000, 7}, &held, &store);
  store.Append(map, 300, 302);
  store.Append(map, 302, 303);  // goes on
  store.Append(map, 10, 12);
  Append(std::vector<Token>{1}, &held, &store);
  EXPECT_THAT(TokensOf(store), ElementsAre(60000, 7, 300, 301, 302, 10, 11, 1));
  std::vector<int32_t> part(4);
  EXPECT_OK(store.Copy(3, part));
  EXPECT_THAT(part, ElementsAre(301, 302, 10, 11));
}

TEST(HeldShards, KeepTheLargestTokenOfEveryVocabulary) {
  for (const int32_t vocab : {2, 256, 257, 65536, 65537, 128256, kMostTokens}) {
    HeldShards held(vocab);
    TokenStore store;
    Append(std::vector<Token>{vocab - 1, 0, vocab - 1}, &held, &store);
    EXPECT_THAT(TokensOf(store), ElementsAre(vocab - 1, 0, vocab - 1));
  }
  EXPECT_EQ(TokenBytes(256), 1);
  EXPECT_EQ(TokenBytes(65536), 2);
  EXPECT_EQ(TokenBytes(65537), 4);
}

// Documents shorter and longer than a shard.
TEST(HeldShards, AShardEndsWithADocument) {
  HeldShards held(/*vocab=*/256);
  TokenStore store;
  std::vector<Token> wanted;
  std::set<const TokenShard*> shards;
  for (const size_t size : {3 << 20, 1 << 20, 9 << 20, 5, 1}) {
    std::vector<Token> document(size);
    for (size_t i = 0; i < size; ++i) document[i] = static_cast<Token>((i + size) % 251);
    const ShardDocument added = held.Add({size, 0}, document);
    EXPECT_EQ(added.hash.first, size);
    EXPECT_EQ(added.end - added.begin, static_cast<int64_t>(size));
    shards.insert(added.shard.get());
    store.Append(added.shard, added.begin, added.end);
    wanted.insert(wanted.end(), document.begin(), document.end());
  }
  EXPECT_EQ(shards.size(), 3u);
  EXPECT_TRUE(TokensOf(store) == wanted);
}

// Against a plain vector: what is appended, held or mapped, and what is moved away.
TEST(TokenStore, MovesTokensLikeAVector) {
  const TempDir dir;
  const auto map = Map(dir, 2, 1000);
  std::mt19937 random(7);
  const auto below = [&](size_t limit) { return static_cast<int64_t>(random() % limit); };
  for (int round = 0; round < 200; ++round) {
    const int32_t vocab = round % 2 == 0 ? 1000 : 100000;
    HeldShards held(vocab);
    TokenStore from, to;
    std::vector<int32_t> wanted_from, wanted_to;
    for (int piece = 0; piece < 8; ++piece) {
      const int64_t begin = below(900), end = begin + below(20);
      std::vector<int32_t> tokens(static_cast<size_t>(end - begin));
      std::iota(tokens.begin(), tokens.end(), static_cast<int32_t>(begin));
      if (below(2) == 0) {
        from.Append(map, begin, end);
      } else {
        Append(tokens, &held, &from);
      }
      wanted_from.insert(wanted_from.end(), tokens.begin(), tokens.end());
    }
    for (int move = 0; move < 3; ++move) {
      const int64_t begin = below(wanted_from.size() + 1);
      const int64_t end = begin + below(wanted_from.size() - static_cast<size_t>(begin) + 1);
      from.Move(begin, end, &to);
      wanted_to.insert(wanted_to.end(), wanted_from.begin() + begin, wanted_from.begin() + end);
      wanted_from.erase(wanted_from.begin() + begin, wanted_from.begin() + end);
      ASSERT_EQ(TokensOf(from), wanted_from) << round;
      ASSERT_EQ(TokensOf(to), wanted_to) << round;
    }
    Append(std::vector<Token>{5}, &held, &from);
    wanted_from.push_back(5);
    ASSERT_EQ(TokensOf(from), wanted_from) << round;
  }
}

}  // namespace
}  // namespace nsa::train
