#include "worker/train/needle/pass_key.h"

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"

namespace nsa::train {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

std::string KeyOf(const PassKeyDocument& document) { return document.answer.substr(1); }

TEST(PassKey, ADocumentHasTheKeyTwiceAndAsksForItAtItsEnd) {
  const PassKeyDocument document = MakePassKeyDocument(Filler(), 400, 0.5, 3);
  EXPECT_THAT(document.answer, MatchesRegex(" [1-9][0-9][0-9][0-9][0-9]"));
  const std::string key = KeyOf(document);
  EXPECT_THAT(document.prompt,
              HasSubstr(absl::StrFormat("\nThe pass key is %s. Remember it. %s is the pass key.\n",
                                        key, key)));
  EXPECT_THAT(document.prompt, EndsWith("\nWhat is the pass key? The pass key is"));
  EXPECT_THAT(document.prompt, HasSubstr("The sky is blue. The sun is yellow."));
}

TEST(PassKey, ADocumentHasExactlyTheWantedBytes) {
  for (size_t bytes = kLeastPassKeyBytes; bytes < 700; ++bytes) {
    const PassKeyDocument document = MakePassKeyDocument(Filler(), bytes, 0.3, bytes);
    ASSERT_EQ(document.prompt.size() + document.answer.size(), bytes);
  }
}

TEST(PassKey, DepthIsTheKeysPlaceInTheFiller) {
  const auto place = [](double depth) {
    const PassKeyDocument document = MakePassKeyDocument(Filler(), 10'000, depth, 5);
    return static_cast<double>(document.prompt.find("\nThe pass key is")) / 10'000;
  };
  EXPECT_EQ(place(0), 0);
  EXPECT_NEAR(place(0.25), 0.25, 0.01);
  EXPECT_NEAR(place(0.5), 0.5, 0.01);
  EXPECT_GT(place(1), 0.98);
}

TEST(PassKey, TheSameSeedGivesTheSameDocumentAndOthersOtherKeys) {
  std::set<std::string> keys;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const PassKeyDocument document = MakePassKeyDocument(Filler(), 300, 0.5, seed);
    EXPECT_EQ(document.prompt, MakePassKeyDocument(Filler(), 300, 0.5, seed).prompt);
    keys.insert(KeyOf(document));
  }
  EXPECT_GT(keys.size(), 95u);
}

TEST(PassKey, WordsOfATextAreTheFiller) {
  std::string text;
  for (int i = 0; i < 200; ++i) absl::StrAppend(&text, "wörd", i, i % 2 == 0 ? "\n" : " \t");
  const auto filler = Filler::FromText(text);
  ASSERT_OK(filler);
  size_t next = 198;
  EXPECT_EQ(filler->Words(24, &next), "wörd198 wörd199 ") << "18 bytes; the next word has 6";
  EXPECT_EQ(next, 0u) << "begins again";
  EXPECT_THAT(MakePassKeyDocument(*filler, 2'000, 0.5, 1).prompt, HasSubstr("wörd1 wörd2 "));
}

TEST(PassKey, RefusesAFillerThatIsNoText) {
  std::string words;
  for (int i = 0; i < 99; ++i) words += "word ";
  const auto why = [](const std::string& text) {
    return std::string(Filler::FromText(text).status().message());
  };
  EXPECT_THAT(why(words), StartsWith("filler: 99 words"));
  EXPECT_OK(Filler::FromText(words + "word"));
  EXPECT_THAT(why(words + "\xff"), StartsWith("filler: not UTF-8"));
  EXPECT_THAT(why(words + std::string("a\x1b[2J b")), StartsWith("filler: has control characters"));
  EXPECT_THAT(why(words + std::string(1'001, 'x')),
              StartsWith("filler: a word of 1001 bytes (at most 1000)"));
}

}  // namespace
}  // namespace nsa::train
