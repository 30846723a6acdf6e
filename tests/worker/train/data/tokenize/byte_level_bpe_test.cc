#include <algorithm>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "worker/train/data/corpus.h"
#include "worker/train/data/tokenize/bpe.h"

namespace nsa::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// How GPT-2's files write a byte: a printable one as itself, the others, in order, as U+0100,
// U+0101, …
std::string Character(int byte) {
  static const std::vector<std::string> characters = [] {
    std::vector<std::string> all(256);
    int next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool self = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
      const int code = self ? b : next++;
      all[b] = code < 128 ? std::string(1, static_cast<char>(code))
                          : std::string{static_cast<char>(0xc0 | (code >> 6)),
                                        static_cast<char>(0x80 | (code & 63))};
    }
    return all;
  }();
  return characters[byte];
}

// A tokenizer whose tokens are the bytes 0 … 255, then the results of `merges`, then the separator.
std::unique_ptr<TextTokenizer> Tokenizer(
    const TempDir& dir, const std::vector<std::pair<std::string, std::string>>& merges) {
  nlohmann::json vocab = nlohmann::json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[Character(byte)] = byte;
  std::ofstream file(dir / "merges.txt");
  file << "#version: 0.2\n";
  int id = 256;
  for (const auto& [left, right] : merges) {
    file << left << " " << right << "\n";
    vocab[left + right] = id++;
  }
  vocab["<|endoftext|>"] = id;
  std::ofstream(dir / "vocab.json") << vocab.dump();
  file.close();
  auto tokenizer = LoadBpe(v1::TOKENIZER_GPT2, dir.path());
  EXPECT_OK(tokenizer);
  return *std::move(tokenizer);
}

std::vector<Token> Encode(const TextTokenizer& tokenizer, const std::string& text) {
  std::vector<Token> tokens;
  EXPECT_OK(tokenizer.Encode(text, &tokens));
  return tokens;
}

const std::string kSpace = "\xc4\xa0";  // Ġ, how GPT-2 writes a space

TEST(Gpt2Bpe, MergesTheMostWantedPairFirst) {
  const TempDir dir;
  // In "abc", b c (rank 0) is merged before a b (rank 1); then a bc.
  const auto tokenizer = Tokenizer(dir, {{"b", "c"}, {"a", "b"}, {"a", "bc"}});
  EXPECT_THAT(Encode(*tokenizer, "abc"), ElementsAre(258));
  EXPECT_THAT(Encode(*tokenizer, "abab"), ElementsAre(257, 257));
  EXPECT_THAT(Encode(*tokenizer, "cab"), ElementsAre('c', 257));
}

TEST(Gpt2Bpe, ReadsFilesWithCrlfAndAByteOrderMark) {
  TempDir dir;
  Tokenizer(dir, {{"b", "c"}, {"a", "b"}, {"a", "bc"}});
  std::ofstream(dir / "merges.txt", std::ios::binary)
      << "\xEF\xBB\xBF#version: 0.2\r\nb c\r\na b\r\na bc\r\n";
  const auto tokenizer = LoadBpe(v1::TOKENIZER_GPT2, dir.path());
  ASSERT_OK(tokenizer);
  EXPECT_THAT(Encode(**tokenizer, "abc"), ElementsAre(258));
}

TEST(Gpt2Bpe, NamesWhatStandsInThePlaceOfAFile) {
  TempDir dir;
  Tokenizer(dir, {{"b", "c"}});
  std::ofstream(dir / "vocab.json") << "version https://git-lfs.github.com/spec/v1\n";
  EXPECT_THAT(LoadBpe(v1::TOKENIZER_GPT2, dir.path()).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("git lfs pull")));
}

TEST(Gpt2Bpe, SplitsWordsWithTheirLeadingSpaceAsGpt2Does) {
  const TempDir dir;
  const auto tokenizer =
      Tokenizer(dir, {{kSpace, "a"}, {"a", "a"}, {"a", "1"}, {kSpace, kSpace}, {"'", "s"}});
  EXPECT_THAT(Encode(*tokenizer, "a a"), ElementsAre('a', 256));
  EXPECT_THAT(Encode(*tokenizer, "a1"), ElementsAre('a', '1'));  // letters and digits are split
  EXPECT_THAT(Encode(*tokenizer, "a   a"),
              ElementsAre('a', 259, 256));  // the last space belongs to the word
  EXPECT_THAT(Encode(*tokenizer, "a's"), ElementsAre('a', 260));
}

TEST(Gpt2Bpe, GivesBackEveryByte) {
  const TempDir dir;
  const auto tokenizer = Tokenizer(dir, {{"a", "b"}, {"\xc3\x83", "\xc2\xa9"}});
  std::string text = "abé\xe2\x82\xac\n\t \xff\xfe broken \xc3";
  for (int byte = 1; byte < 256; ++byte) text += static_cast<char>(byte);
  std::string back;
  const auto tokens = Encode(*tokenizer, text);
  for (const Token token : tokens) back += tokenizer->Decode(token);
  EXPECT_EQ(back, text);
  EXPECT_EQ(tokens[0], 256);
  EXPECT_EQ(tokens[1], 257);  // é in one token
  EXPECT_EQ(tokenizer->separator(), 258);
  EXPECT_EQ(tokenizer->vocab(), 259);
  EXPECT_EQ(tokenizer->Decode(258), "");
}

// BPE as its definition says: the adjacent pair with the lowest rank is merged, the leftmost of
// equal ones, until no pair has a rank. Quadratic.
std::vector<Token> MergePlainly(
    const std::map<std::pair<Token, Token>, std::pair<int, Token>>& merges,
    const std::string& piece) {
  std::vector<Token> ids;
  for (const char c : piece) ids.push_back(static_cast<unsigned char>(c));
  while (true) {
    auto best = merges.end();
    size_t at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto merge = merges.find({ids[i], ids[i + 1]});
      if (merge == merges.end()) continue;
      if (best != merges.end() && merge->second.first >= best->second.first) continue;
      best = merge;
      at = i;
    }
    if (best == merges.end()) return ids;
    ids[at] = best->second.second;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
}

TEST(Gpt2Bpe, MergesAnyPieceAsThePlainLoopDoes) {
  std::mt19937 random(7);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  for (int round = 0; round < 20; ++round) {
    const TempDir dir;
    // Random merges of three letters and of what they merge to, in random order of rank.
    std::vector<std::string> texts = {"a", "b", "c"};
    std::vector<std::pair<std::string, std::string>> pairs;
    std::set<std::string> made(texts.begin(), texts.end());
    for (int merge = 0; merge < 40; ++merge) {
      const std::string left = texts[below(texts.size())], right = texts[below(texts.size())];
      if (left.size() + right.size() > 12 || !made.insert(left + right).second) continue;
      pairs.emplace_back(left, right);
      texts.push_back(left + right);
    }
    std::shuffle(pairs.begin(), pairs.end(), random);
    const auto tokenizer = Tokenizer(dir, pairs);
    std::map<std::string, Token> ids;
    for (size_t i = 0; i < pairs.size(); ++i) {
      ids[pairs[i].first + pairs[i].second] = static_cast<Token>(256 + i);
    }
    for (const char* letter : {"a", "b", "c"}) ids[letter] = static_cast<Token>(*letter);
    std::map<std::pair<Token, Token>, std::pair<int, Token>> merges;
    for (size_t i = 0; i < pairs.size(); ++i) {
      const auto& [left, right] = pairs[i];
      merges[{ids[left], ids[right]}] = {static_cast<int>(i), ids[left + right]};
    }
    for (int text = 0; text < 200; ++text) {
      std::string piece(1 + below(text < 190 ? 40 : 600), 'a');
      for (char& c : piece) c = static_cast<char>('a' + below(3));
      ASSERT_EQ(Encode(*tokenizer, piece), MergePlainly(merges, piece)) << piece;
    }
    const std::string same(below(500), 'a');
    ASSERT_EQ(Encode(*tokenizer, same), MergePlainly(merges, same));
  }
}

// A megabyte of letters is one piece. The plain loop would take about an hour for it.
TEST(Gpt2Bpe, MergesAPieceOfAMegabyteInSeconds) {
  const TempDir dir;
  const auto tokenizer = Tokenizer(dir, {{"a", "b"}, {"ab", "ab"}, {"b", "a"}, {"abab", "abab"}});
  std::string piece;
  while (piece.size() < size_t{1} << 20) piece += "abababab";
  const absl::Time begin = absl::Now();
  EXPECT_EQ(Encode(*tokenizer, piece), std::vector<Token>(piece.size() / 8, 259));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(60));
}

TEST(Gpt2Bpe, StopsWithinALongPieceWhenNobodyWaits) {
  const TempDir dir;
  const auto tokenizer = Tokenizer(dir, {{"a", "b"}});
  std::string piece;
  while (piece.size() < size_t{4} << 20) piece += "ab";
  ReadProgress progress;
  std::thread impatient([&] {
    while (progress.bytes == 0) std::this_thread::yield();
    progress.cancelled = true;
  });
  std::vector<Token> tokens;
  EXPECT_THAT(tokenizer->Encode(piece, &tokens, &progress), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_LT(progress.bytes, static_cast<int64_t>(piece.size()));
  impatient.join();
}

TEST(Gpt2Bpe, NamesWhatIsWrongWithItsFiles) {
  const TempDir dir;
  EXPECT_THAT(LoadBpe(v1::TOKENIZER_GPT2, dir.path()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("vocab.json")));
  Tokenizer(dir, {{"a", "b"}});
  std::ofstream(dir / "merges.txt") << "#version: 0.2\na b\nx\n";
  EXPECT_THAT(LoadBpe(v1::TOKENIZER_GPT2, dir.path()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("merges.txt:3:")));
  std::ofstream(dir / "merges.txt") << "a b\nb a\na b\n";
  EXPECT_THAT(LoadBpe(v1::TOKENIZER_GPT2, dir.path()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("merges.txt:2")));
  std::ofstream(dir / "merges.txt") << "a b\na b\n";
  EXPECT_THAT(LoadBpe(v1::TOKENIZER_GPT2, dir.path()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("duplicate merge 'a b'")));
  std::ofstream(dir / "vocab.json") << "{\"a\": 0}";
  EXPECT_THAT(LoadBpe(v1::TOKENIZER_GPT2, dir.path()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no token for byte 0")));
}

TEST(MakeTokenizer, SaysWhatGpt2Needs) {
  v1::DataSpec data;
  data.set_tokenizer(v1::TOKENIZER_GPT2);
  EXPECT_THAT(MakeTokenizer(data),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("data.tokenizer_path")));
  data.set_tokenizer(v1::TOKENIZER_BYTE);
  EXPECT_EQ((*MakeTokenizer(data))->vocab(), 256);
}

TEST(Tokenizers, ShowHowFarTheyAreAndEndWhenNobodyWaits) {
  const TempDir dir;
  const auto bpe = Tokenizer(dir, {{"a", "b"}});
  const auto bytes = ByteTokenizer();
  const std::string text = "ab a\xff b " + std::string(3 << 20, '\n') + "ab";
  for (const TextTokenizer* tokenizer : {bpe.get(), bytes.get()}) {
    ReadProgress progress;
    std::vector<Token> tokens;
    EXPECT_OK(tokenizer->Encode(text, &tokens, &progress));
    EXPECT_EQ(progress.bytes, static_cast<int64_t>(text.size()));
    EXPECT_EQ(tokens, Encode(*tokenizer, text)) << "differs from Encode() without progress";
    progress.cancelled = true;
    EXPECT_THAT(tokenizer->Encode(text, &tokens, &progress),
                StatusIs(absl::StatusCode::kCancelled));
  }
}

// Without val_fraction a text file is one document. Encoding it may take longer than the stall
// timeout. The text is made as long as this machine encodes in three to six seconds, so that a
// process that waits a second for its processor is no stalled read either.
TEST(Tokenizers, ALongEncodingIsNoStalledRead) {
  const TempDir dir;
  const auto tokenizer = Tokenizer(dir, {{"a", "a"}});
  std::string text;
  for (int word = 0; word < 1000; ++word) text += "aaaaaaaaa\n";
  std::vector<Token> tokens;
  absl::Duration taken;
  while (taken < absl::Seconds(3)) {
    text += text;
    const absl::Time begin = absl::Now();
    tokens = Encode(*tokenizer, text);
    taken = absl::Now() - begin;
  }
  std::ofstream(dir / "a.txt") << text;
  v1::DataSpec spec;
  spec.set_source(v1::DATA_SOURCE_TEXT);
  spec.set_tokenizer(v1::TOKENIZER_GPT2);
  spec.set_tokenizer_path(dir.path().string());
  spec.add_path(dir / "a.txt");
  const auto corpus = LoadCorpus(spec, tokenizer->vocab(), taken / 3);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ(corpus->info.tokens, static_cast<int64_t>(tokens.size()) + 1);
}

}  // namespace
}  // namespace nsa::train
