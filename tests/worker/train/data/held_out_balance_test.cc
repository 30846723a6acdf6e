// How near data.val_fraction comes to its share of small data.
#include "worker/train/data/held_out_balance.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/data/data_files.h"
#include "tests/worker/train/data/held_tokens.h"
#include "worker/train/data/corpus.h"

namespace nsa::train {
namespace {

using testing::HasSubstr;

// Paragraphs of about 400 bytes.
std::string Prose(size_t bytes) {
  std::string text;
  for (int i = 0; text.size() < bytes; ++i) {
    text += absl::StrCat("Paragraph ", i, ":");
    for (int word = 0; word < 60; ++word)
      text += absl::StrCat(word % 12 == 0 ? "\n" : " ", "word", i * word);
    text += "\n\n";
  }
  text.resize(bytes);
  return text;
}

v1::DataSpec SpecOf(const std::filesystem::path& file, double fraction,
                    v1::DataSource source = v1::DATA_SOURCE_TEXT) {
  v1::DataSpec spec;
  spec.set_source(source);
  spec.add_path(file.string());
  spec.set_val_fraction(fraction);
  return spec;
}

absl::StatusOr<Corpus> Load(const v1::DataSpec& spec, int32_t seq_len = 128,
                            const std::string& fingerprint = "") {
  return LoadCorpus(spec, 256, absl::Seconds(20), {}, {}, nullptr, {},
                    {.seq_len = seq_len, .fingerprint = fingerprint});
}

double ShareOf(const Corpus& corpus) {
  const auto held_out = static_cast<double>(corpus.info.val_tokens);
  return held_out / (held_out + static_cast<double>(corpus.info.tokens));
}

std::string TextOf(const TokenStore& store) {
  std::vector<int32_t> tokens(static_cast<size_t>(store.size()));
  EXPECT_OK(store.Copy(0, tokens));
  return std::string(tokens.begin(), tokens.end());
}

TEST(HeldOutBalance, ATextOfAnySizeHoldsOutWhatWasAskedFor) {
  const TempDir dir;
  for (const size_t bytes : {30'000, 60'000, 100'000, 200'000, 400'000, 2'000'000}) {
    const std::string prose = Prose(bytes);
    const std::string no_blank = absl::StrReplaceAll(prose, {{"\n\n", "\n"}});
    for (const auto& [kind, text] : std::map<std::string, std::string>{
             {"LF", prose},
             {"CRLF", absl::StrReplaceAll(prose, {{"\n", "\r\n"}})},
             {"CRLF without blank lines", absl::StrReplaceAll(no_blank, {{"\n", "\r\n"}})},
             {"one line", absl::StrReplaceAll(prose, {{"\n", " "}})}}) {
      Write(dir / "a.txt", text);
      for (const double fraction : {0.01, 0.05, 0.2}) {
        const auto corpus = Load(SpecOf(dir / "a.txt", fraction));
        ASSERT_OK(corpus);
        const std::string which = absl::StrCat(bytes, " bytes, ", kind, ", ", fraction);
        EXPECT_GE(ShareOf(*corpus), fraction / kHeldOutFactor * 0.99) << which;
        EXPECT_LE(ShareOf(*corpus), fraction * kHeldOutFactor * 1.01) << which;
        // Every byte is on one side, and each document begins with a separator.
        const int64_t documents = corpus->info.documents + corpus->info.val_documents;
        EXPECT_EQ(corpus->info.tokens + corpus->info.val_tokens, std::ssize(text) + documents)
            << which;
      }
    }
  }
}

TEST(HeldOutBalance, AValidationHasAtLeastASequence) {
  const TempDir dir;
  Write(dir / "a.txt", Prose(30'000));
  const auto corpus = Load(SpecOf(dir / "a.txt", 0.01), 2048);
  ASSERT_OK(corpus);
  EXPECT_GE(corpus->info.val_tokens, 2049);
  EXPECT_LE(corpus->info.val_tokens, 3074);
}

TEST(HeldOutBalance, TheHeldOutEndOfAPassageBeginsAsAParagraph) {
  const TempDir dir;
  Write(dir / "a.txt", Prose(100'000));
  const auto corpus = Load(SpecOf(dir / "a.txt", 0.01));
  ASSERT_OK(corpus);
  EXPECT_EQ(corpus->info.val_documents, 1);
  EXPECT_THAT(TextOf(*corpus->parts[0].val), testing::StartsWith(std::string("\0Paragraph", 10)));
}

TEST(HeldOutBalance, DocumentsAreHeldOutWholeWithTheirCopies) {
  const TempDir dir;
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    const std::string text = absl::StrCat("document ", i, std::string(i == 7 ? 90'000 : 200, 'a'));
    for (int copy = 0; copy < (i % 5 == 0 ? 2 : 1); ++copy) {
      lines += absl::StrCat("{\"text\": \"", text, "\"}\n");
    }
  }
  Write(dir / "a.jsonl", lines);
  for (const double fraction : {0.001, 0.005, 0.02}) {
    const auto corpus = Load(SpecOf(dir / "a.jsonl", fraction, v1::DATA_SOURCE_JSONL), 64);
    ASSERT_OK(corpus);
    EXPECT_EQ(corpus->info.documents + corpus->info.val_documents, 48);
    EXPECT_LT(ShareOf(*corpus), 0.05) << "the long document is for training";
    const std::string train = TextOf(*corpus->parts[0].train), val = TextOf(*corpus->parts[0].val);
    for (size_t at = val.find("document"); at != std::string::npos;
         at = val.find("document", at + 1)) {
      EXPECT_THAT(train, testing::Not(HasSubstr(val.substr(at, val.find('a', at) + 1 - at))));
    }
  }
}

TEST(HeldOutBalance, ASmallSourceOfAMixtureKeepsItsTraining) {
  constexpr int64_t kLarge = 16'500, kSmall = 10'000;
  Corpus corpus;
  corpus.separator = kNoSeparator;
  HeldOutBalance balance;
  HeldShards held(256);
  for (const size_t part : {0, 1}) {
    corpus.parts.push_back(
        {.train = std::make_shared<TokenStore>(), .val = std::make_shared<TokenStore>()});
    for (uint64_t i = 0; i < (part == 0 ? 12 : 1); ++i) {
      TokenStore& store = *corpus.parts[part].train;
      const std::vector<Token> tokens(static_cast<size_t>(part == 0 ? kLarge : kSmall), 1);
      Append(tokens, &held, &store);
      // The small source has the lowest hash, and is the only document that is not too large.
      balance.Add({.hash = {0, part == 0 ? 100 + i : 0},
                   .part = part,
                   .begin = store.size() - std::ssize(tokens),
                   .end = store.size()});
    }
  }
  const auto changed = balance.Apply(HeldOutTokensOf(12 * kLarge + kSmall, 0.05, 2048), &corpus);
  ASSERT_OK(changed);
  EXPECT_TRUE(*changed);
  EXPECT_EQ(corpus.parts[0].val->size(), kLarge);
  EXPECT_EQ(corpus.parts[1].train->size(), kSmall);
}

TEST(HeldOutBalance, MoreDocumentsThanItRemembersAreLeftToTheirHashes) {
  Corpus corpus;
  corpus.separator = kNoSeparator;
  corpus.parts.push_back(
      {.train = std::make_shared<TokenStore>(), .val = std::make_shared<TokenStore>()});
  HeldOutBalance balance;
  HeldShards held(256);
  const std::vector<Token> token = {1};
  for (uint64_t i = 0; i < 3000; ++i) {
    const bool held_out = i % 2 == 0;
    TokenStore* const store = (held_out ? corpus.parts[0].val : corpus.parts[0].train).get();
    Append(token, &held, store);
    balance.Add({.hash = {0, held_out ? i : i + 10'000},
                 .held_out = held_out,
                 .begin = store->size() - 1,
                 .end = store->size()});
  }
  const auto changed = balance.Apply(HeldOutTokensOf(3000, 0.01, 0), &corpus);
  ASSERT_OK(changed);
  EXPECT_FALSE(*changed);
  EXPECT_EQ(corpus.parts[0].val->size(), 1500);
}

TEST(HeldOutBalance, ACheckpointOfTheHashesAloneKeepsItsDocuments) {
  const TempDir dir;
  Write(dir / "a.txt", Prose(100'000));
  const v1::DataSpec spec = SpecOf(dir / "a.txt", 0.01);
  const auto now = Load(spec);
  ASSERT_OK(now);
  EXPECT_NE(now->info.fingerprint, now->info.fingerprint_by_hash);
  const auto before = Load(spec, 128, now->info.fingerprint_by_hash);
  ASSERT_OK(before);
  EXPECT_EQ(before->info.fingerprint, now->info.fingerprint_by_hash);
  EXPECT_GT(ShareOf(*before), 0.1) << "a whole passage";
  const auto again = Load(spec, 128, now->info.fingerprint);
  ASSERT_OK(again);
  EXPECT_EQ(again->info.fingerprint, now->info.fingerprint);
  EXPECT_EQ(TextOf(*again->parts[0].val), TextOf(*now->parts[0].val));
  // Data whose hashes come near the share has one fingerprint.
  std::string lines;
  for (int i = 0; i < 3000; ++i) lines += absl::StrCat("{\"text\": \"document ", i, "\"}\n");
  Write(dir / "a.jsonl", lines);
  const auto many = Load(SpecOf(dir / "a.jsonl", 0.2, v1::DATA_SOURCE_JSONL));
  ASSERT_OK(many);
  EXPECT_EQ(many->info.fingerprint, many->info.fingerprint_by_hash);
}

TEST(HeldOutBalance, ATextIsCutAtTheBestPlaceNearTheOneAskedFor) {
  const auto cut = [](const std::string& text, int64_t ideal) {
    const int64_t place = CutInText(text, 3, ideal, std::ssize(text) - 1);
    return text.substr(static_cast<size_t>(place));
  };
  EXPECT_EQ(cut("one\n\ntwo three\nfour five", 18), "two three\nfour five");
  EXPECT_EQ(cut("one\r\n\r\ntwo three\r\nfour five", 18), "two three\r\nfour five");
  EXPECT_EQ(cut("one two\r\nthree four", 15), "three four");
  EXPECT_EQ(cut("one two three", 12), "three");
  EXPECT_EQ(cut("one two three", 6), "two three") << "the nearest";
  EXPECT_EQ(cut("ab\u00e4\u00f6\u00fc", 5), "\u00f6\u00fc") << "not within a character";
}

}  // namespace
}  // namespace nsa::train
