#include "worker/train/data/tokenize/text/added_tokens.h"

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"

namespace nsa::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Stretches = std::vector<std::pair<std::string, int32_t>>;

constexpr int32_t kText = AddedTokens::kNone;

struct Token {
  std::string text;
  int32_t id;
  bool special = false;
};

AddedTokens Make(const std::vector<Token>& tokens) {
  AddedTokens added;
  for (const Token& token : tokens)
    EXPECT_OK(added.Add(token.text, {.id = token.id, .special = token.special}));
  return added;
}

Stretches Walk(const AddedTokens& added, std::string_view text) {
  Stretches stretches;
  for (AddedTokens::Walk walk(added, text); !walk.done();) {
    const AddedTokens::Stretch stretch = walk.Next();
    stretches.emplace_back(stretch.text, stretch.token);
  }
  return stretches;
}

TEST(AddedTokens, TheFirstPlaceCountsAndThereTheLongest) {
  const AddedTokens added = Make({{"<a>", 1}, {"<a", 2}, {">b", 3}, {"  ", 4}, {"   ", 5}});
  EXPECT_THAT(Walk(added, "<a>b x<ab>b"),
              ElementsAre(std::pair("<a>", 1), std::pair("b x", kText), std::pair("<a", 2),
                          std::pair("b", kText), std::pair(">b", 3)));
  EXPECT_THAT(Walk(added, "x     y "), ElementsAre(std::pair("x", kText), std::pair("   ", 5),
                                                   std::pair("  ", 4), std::pair("y ", kText)));
  EXPECT_THAT(Walk(added, "<b <"), ElementsAre(std::pair("<b <", kText)));
  EXPECT_TRUE(Walk(added, "").empty());
  EXPECT_THAT(Walk(added, "<a><a>"), ElementsAre(std::pair("<a>", 1), std::pair("<a>", 1)));
}

TEST(AddedTokens, WhatIsInASpecialTokenIsText) {
  const AddedTokens added = Make({{"<|im|>", 1, true}, {"im", 2}, {"|>x", 3}, {"é", 4}});
  EXPECT_THAT(Walk(added, "im<|im|>x<|imé"),
              ElementsAre(std::pair("im", 2), std::pair("<|im|>x<|", kText), std::pair("im", 2),
                          std::pair("é", 4)));
}

TEST(AddedTokens, OfTwoWithOneTextTheFirstCounts) {
  EXPECT_THAT(Walk(Make({{"a", 1}, {"a", 2}}), "a"), ElementsAre(std::pair("a", 1)));
  EXPECT_THAT(Walk(Make({{"a", 1, true}, {"a", 2}}), "ba"), ElementsAre(std::pair("ba", kText)));
}

TEST(AddedTokens, SpecialTokensAloneAreNone) {
  EXPECT_TRUE(AddedTokens().empty());
  EXPECT_TRUE(Make({{"a", 1, true}}).empty());
  EXPECT_FALSE(Make({{"a", 1}}).empty());
  EXPECT_THAT(Walk(AddedTokens(), "ab"), ElementsAre(std::pair("ab", kText)));
}

// The same as looking at every place for every token.
TEST(AddedTokens, FindsWhatASearchAtEveryPlaceFinds) {
  std::mt19937 random(20261123);
  const auto text_of = [&](size_t most) {
    std::string text;
    for (size_t i = random() % most + 1; i > 0; --i) text += "ab\xff\0"[random() % 4];
    return text;
  };
  for (int round = 0; round < 5000; ++round) {
    std::map<std::string, Token> tokens;
    for (int i = 0; i < 6; ++i) {
      const std::string text = text_of(4);
      tokens.try_emplace(text, Token{text, i, random() % 3 == 0});
    }
    tokens["b"] = {"b", 99};
    AddedTokens added;
    for (const auto& [text, token] : tokens)
      ASSERT_OK(added.Add(text, {.id = token.id, .special = token.special}));
    const std::string text = text_of(30);
    Stretches wanted;
    std::string before;
    for (size_t at = 0; at < text.size();) {
      const Token* longest = nullptr;
      for (const auto& [spelling, token] : tokens) {
        if (text.compare(at, spelling.size(), spelling) == 0) {
          if (longest == nullptr || spelling.size() > longest->text.size()) longest = &token;
        }
      }
      const size_t size = longest == nullptr ? 1 : longest->text.size();
      if (longest == nullptr || longest->special) {
        before += text.substr(at, size);
      } else {
        if (!before.empty()) wanted.emplace_back(std::exchange(before, ""), kText);
        wanted.emplace_back(longest->text, longest->id);
      }
      at += size;
    }
    if (!before.empty()) wanted.emplace_back(before, kText);
    ASSERT_EQ(Walk(added, text), wanted);
  }
}

TEST(AddedTokens, RefusesWhatIsAboveTheLimits) {
  AddedTokens added;
  EXPECT_OK(added.Add(std::string(kLongestAddedToken, 'a'), {.id = 1}));
  EXPECT_THAT(
      added.Add(std::string(kLongestAddedToken + 1, 'a'), {.id = 2}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has 257 bytes (from 1 to 256)")));
  EXPECT_THAT(added.Add("", {.id = 2}), StatusIs(absl::StatusCode::kInvalidArgument,
                                                 HasSubstr("has 0 bytes (from 1 to 256)")));
  absl::Status status;
  for (int i = 0; status.ok(); ++i) {
    ASSERT_LT(i, 1 << 20);
    status = added.Add(std::string(200, 'b') + std::to_string(i), {.id = i});
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("(at most 1048576)")));
}

TEST(AddedTokens, TakeTheWhiteSpaceBesideThemWhereTheySaySo) {
  AddedTokens added;
  EXPECT_OK(added.Add("<l>", {.id = 1, .lstrip = true}));
  EXPECT_OK(added.Add("<r>", {.id = 2, .rstrip = true}));
  EXPECT_OK(added.Add("<b>", {.id = 3, .lstrip = true, .rstrip = true}));
  EXPECT_THAT(Walk(added, "a \n<l> b"),
              ElementsAre(std::pair("a", kText), std::pair(" \n<l>", 1), std::pair(" b", kText)));
  EXPECT_THAT(
      Walk(added, "a <r>\u3000 b"),
      ElementsAre(std::pair("a ", kText), std::pair("<r>\u3000 ", 2), std::pair("b", kText)));
  // The first takes the space between two.
  EXPECT_THAT(Walk(added, " <b> <b> <l>"),
              ElementsAre(std::pair(" <b> ", 3), std::pair("<b> ", 3), std::pair("<l>", 1)));
}

TEST(AddedTokens, ASingleWordHasNoLettersDigitsOrMarksBesideIt) {
  AddedTokens added;
  EXPECT_OK(added.Add("ab", {.id = 1, .single_word = true}));
  EXPECT_THAT(Walk(added, "ab abc .ab-"),
              ElementsAre(std::pair("ab", 1), std::pair(" abc .", kText), std::pair("ab", 1),
                          std::pair("-", kText)));
  for (const char* beside : {"x", "é", "9", "_", "\u0301", "\u24b6", "\u200d", "日", "\u2160"}) {
    EXPECT_EQ(Walk(added, std::string("ab") + beside).size(), 1u) << beside;
    EXPECT_EQ(Walk(added, std::string(beside) + "ab").size(), 1u) << beside;
  }
  for (const char* beside : {" ", "-", "\u00b2", "😀", "\u2014"}) {
    EXPECT_EQ(Walk(added, std::string("ab") + beside).size(), 2u) << beside;
  }
}

TEST(AddedTokens, TwoThatWouldTakeTheSameSpaceAreRefused) {
  AddedTokens added;
  EXPECT_OK(added.Add("<r>", {.id = 1, .rstrip = true}));
  EXPECT_THAT(added.Add("  ", {.id = 2}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rstrip")));
}

}  // namespace
}  // namespace nsa::train
