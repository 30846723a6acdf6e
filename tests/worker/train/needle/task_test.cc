#include "worker/train/needle/task.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "worker/train/score/utf8.h"

namespace nsa::train {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Ge;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

constexpr NeedleTask kTasks[] = {NeedleTask::kKey, NeedleTask::kKeys, NeedleTask::kValues,
                                 NeedleTask::kTrace, NeedleTask::kCount};

std::string WholeOf(const TaskDocument& document) { return document.prompt + document.answer; }

// A document as a reader sees it: words of the filler have no line ends, so every second line is a
// sentence, and the last one is the question.
struct Read {
  std::vector<std::vector<std::string>> sentences;  // their words
  std::vector<double> places;                       // in the filler, 0 to 1
  std::vector<std::string> question;
};

Read ReadDocument(const TaskDocument& document) {
  const std::vector<std::string> lines = absl::StrSplit(document.prompt, '\n');
  Read read{.question = absl::StrSplit(lines.back(), ' ')};
  size_t filled = 0;
  for (size_t i = 0; i + 1 < lines.size(); ++i) {
    if (i % 2 == 0) {
      filled += lines[i].size();
    } else {
      read.sentences.push_back(absl::StrSplit(lines[i], absl::ByAnyChar(" .="), absl::SkipEmpty()));
      read.places.push_back(static_cast<double>(filled));
    }
  }
  for (double& place : read.places) place /= static_cast<double>(filled);
  return read;
}

// "The pass key of amber is 48213. Remember it."
std::string Named(const Read& read) {
  std::map<std::string, std::string> keys;
  for (const auto& words : read.sentences) keys[words[4]] = words[6];
  return keys.at(read.question[11]);
}

// "One pass key of amber is 48213. Remember it."
std::string All(const Read& read) {
  std::vector<std::string> keys;
  for (const auto& words : read.sentences) {
    if (words[4] == read.question[11]) keys.push_back(words[6]);
  }
  return absl::StrJoin(keys, ", ");
}

// "VAR amber = 48213.", "VAR coral = VAR amber."
std::string Traced(const Read& read) {
  std::map<std::string, std::string> values;
  for (const auto& words : read.sentences) {
    values[words[1]] = words[2] == "VAR" ? values.at(words[3]) : words[2];
  }
  return values.at(read.question[11]);
}

// "The word is amber."
std::string Counted(const Read& read) {
  const std::vector<std::string> wanted = {"The", "word", "is",
                                           std::string(absl::StripSuffix(read.question[9], "?"))};
  return absl::StrCat(std::ranges::count(read.sentences, wanted));
}

std::string AnswerOf(NeedleTask task, const Read& read) {
  switch (task) {
    case NeedleTask::kKey:
      EXPECT_EQ(read.sentences.at(0)[4], read.sentences.at(0)[7]);
      return read.sentences.at(0)[4];
    case NeedleTask::kKeys:
      return Named(read);
    case NeedleTask::kValues:
      return All(read);
    case NeedleTask::kTrace:
      return Traced(read);
    case NeedleTask::kCount:
      return Counted(read);
  }
  return "";
}

TEST(Task, ADocumentOfOneKeyHasTheseBytes) {
  const auto whole = [](double depth, uint64_t seed) {
    return WholeOf(MakeTaskDocument(NeedleTask::kKey, Filler(), 160, depth, seed));
  };
  EXPECT_EQ(whole(0, 1),
            "\nThe pass key is 43137. Remember it. 43137 is the pass key.\n"
            "back again. The grass is green. The sky is blue. The ...\n"
            "What is the pass key? The pass key is 43137");
  EXPECT_EQ(whole(0.5, 2),
            "and back again. The grass ..\n"
            "The pass key is 45299. Remember it. 45299 is the pass key.\n"
            "is green. The sky is blue. .\n"
            "What is the pass key? The pass key is 45299");
  EXPECT_EQ(whole(1, 3),
            "back again. The grass is green. The sky is blue. The ...\n"
            "The pass key is 76376. Remember it. 76376 is the pass key.\n"
            "\n"
            "What is the pass key? The pass key is 76376");
}

// Documents of trained models and their measurements stay comparable.
TEST(Task, ManyDocumentsOfOneKeyHaveTheirHash) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const TaskDocument document = MakeTaskDocument(NeedleTask::kKey, Filler(), 128 + seed * 7,
                                                   static_cast<double>(seed % 11) / 10.0, seed);
    for (const char c : WholeOf(document)) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    }
  }
  EXPECT_EQ(hash, 0x2cccb0f873ba8a1c);
}

TEST(Task, ADocumentHasExactlyTheWantedBytes) {
  for (const NeedleTask task : kTasks) {
    for (size_t bytes = LeastBytes(task); bytes < 700; ++bytes) {
      for (const double depth : {0.0, 0.3, 1.0}) {
        ASSERT_THAT(WholeOf(MakeTaskDocument(task, Filler(), bytes, depth, bytes)), SizeIs(bytes))
            << NameOf(task);
      }
    }
    EXPECT_THAT(WholeOf(MakeTaskDocument(task, Filler(), 1, 0.5, 1)), SizeIs(LeastBytes(task)));
  }
}

TEST(Task, TheAnswerFollowsFromTheDocument) {
  for (const NeedleTask task : kTasks) {
    for (uint64_t seed = 0; seed < 300; ++seed) {
      for (const double depth : {0.0, 0.5, 1.0}) {
        const TaskDocument document =
            MakeTaskDocument(task, Filler(), LeastBytes(task) + seed, depth, seed);
        ASSERT_EQ(document.answer, " " + AnswerOf(task, ReadDocument(document)))
            << WholeOf(document);
      }
    }
  }
}

TEST(Task, TheQuestionIsInWords) {
  const auto end = [](NeedleTask task) {
    const std::string whole = WholeOf(MakeTaskDocument(task, Filler(), 300, 0.5, 4));
    return whole.substr(whole.rfind('\n') + 1);
  };
  EXPECT_EQ(end(NeedleTask::kKeys),
            "What is the pass key of sable? The pass key of sable is 98185");
  EXPECT_EQ(end(NeedleTask::kValues),
            "What are the pass keys of maple? The pass keys of maple are 73930, 30867, 33279");
  EXPECT_EQ(end(NeedleTask::kTrace),
            "What is the value of VAR lemon? The value of VAR lemon is 74935");
  EXPECT_EQ(end(NeedleTask::kCount),
            "How often is it said that the word is maple? The number is 1");
}

// The places in a document of 20,000 bytes, whose bytes are nearly all filler.
Read ReadLong(NeedleTask task, double depth, uint64_t seed) {
  return ReadDocument(MakeTaskDocument(task, Filler(), 20'000, depth, seed));
}

std::vector<double> Percent(const std::vector<double>& places) {
  std::vector<double> percent;
  for (const double place : places) percent.push_back(std::round(1'000 * place) / 10);
  return percent;
}

TEST(Task, OneKeyIsAtTheDepth) {
  EXPECT_THAT(ReadLong(NeedleTask::kKey, 0, 5).places, ElementsAre(0));
  EXPECT_THAT(Percent(ReadLong(NeedleTask::kKey, 0.25, 5).places), ElementsAre(25));
  EXPECT_THAT(ReadLong(NeedleTask::kKey, 1, 5).places, ElementsAre(1));
}

TEST(Task, TheNamedKeyIsAtTheDepthAndTheOthersAreAnywhere) {
  for (const double depth : {0.0, 0.5, 1.0}) {
    std::vector<double> others;
    for (uint64_t seed = 0; seed < 50; ++seed) {
      const Read read = ReadLong(NeedleTask::kKeys, depth, seed);
      ASSERT_THAT(read.sentences, SizeIs(4));
      for (size_t i = 0; i < 4; ++i) {
        if (read.sentences[i][4] == read.question[11]) {
          EXPECT_NEAR(read.places[i], depth, 1e-4);
        } else {
          others.push_back(read.places[i]);
        }
      }
    }
    ASSERT_THAT(others, SizeIs(150));
    std::ranges::sort(others);
    EXPECT_LT(others.front(), 0.1);
    EXPECT_NEAR(others[75], 0.5, 0.2);
    EXPECT_GT(others.back(), 0.9);
  }
}

TEST(Task, ValuesDivideTheFillerBehindTheDepth) {
  const auto places = [](double depth) {
    return Percent(ReadLong(NeedleTask::kValues, depth, 6).places);
  };
  EXPECT_THAT(places(0), ElementsAre(0, 33.3, 66.7));
  EXPECT_THAT(places(0.5), ElementsAre(50, 66.7, 83.3));
  EXPECT_THAT(places(1), ElementsAre(100, 100, 100));
}

// The places of one chain: that of the variable that is asked for, or the other.
std::vector<double> ChainOf(const Read& read, bool asked) {
  std::vector<double> places;
  std::map<std::string, std::string> first;  // of the chain of a variable
  for (const auto& words : read.sentences) {
    first[words[1]] = words[2] == "VAR" ? first.at(words[3]) : words[1];
  }
  for (size_t i = 0; i < read.sentences.size(); ++i) {
    const bool in = first.at(read.sentences[i][1]) == first.at(read.question[11]);
    if (in == asked) places.push_back(read.places[i]);
  }
  return places;
}

TEST(Task, TheTracedVariablesDivideTheFillerBehindTheDepth) {
  std::set<double> begins;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const auto places = [seed](double depth) {
      return Percent(ChainOf(ReadLong(NeedleTask::kTrace, depth, seed), true));
    };
    EXPECT_THAT(places(0), ElementsAre(0, 33.3, 66.7));
    EXPECT_THAT(places(0.5), ElementsAre(50, 66.7, 83.3));
    EXPECT_THAT(places(1), ElementsAre(100, 100, 100));
    const std::vector<double> others = ChainOf(ReadLong(NeedleTask::kTrace, 1, seed), false);
    ASSERT_THAT(others, SizeIs(3));
    EXPECT_NEAR(others[1], others[0] + (1 - others[0]) / 3, 1e-4);
    EXPECT_NEAR(others[2], others[0] + (1 - others[0]) * 2 / 3, 1e-4);
    begins.insert(others[0]);
  }
  EXPECT_LT(*begins.begin(), 0.1);
  EXPECT_GT(*begins.rbegin(), 0.9);
}

TEST(Task, TheCountedSentencesBeginAtTheDepth) {
  for (const double depth : {0.0, 0.5, 1.0}) {
    std::vector<double> behind;
    for (uint64_t seed = 0; seed < 50; ++seed) {
      const std::vector<double> places = ReadLong(NeedleTask::kCount, depth, seed).places;
      EXPECT_NEAR(places[0], depth, 1e-4);
      behind.insert(behind.end(), places.begin() + 1, places.end());
    }
    EXPECT_THAT(behind, Each(Ge(depth)));
    EXPECT_LT(*std::ranges::min_element(behind), depth + 0.05);
    EXPECT_GT(*std::ranges::max_element(behind), 0.95);
  }
}

TEST(Task, NamesAndNumbersOfADocumentDiffer) {
  for (uint64_t seed = 0; seed < 30'000; ++seed) {
    std::set<std::string> names, keys, variables, values;
    for (const auto& words :
         ReadDocument(MakeTaskDocument(NeedleTask::kKeys, Filler(), 255, 0.5, seed)).sentences) {
      names.insert(words[4]);
      keys.insert(words[6]);
    }
    ASSERT_THAT(names, SizeIs(4)) << seed;
    ASSERT_THAT(keys, SizeIs(4)) << seed;
    for (const auto& words :
         ReadDocument(MakeTaskDocument(NeedleTask::kTrace, Filler(), 255, 0.5, seed)).sentences) {
      variables.insert(words[1]);
      if (words[2] != "VAR") values.insert(words[2]);
    }
    ASSERT_THAT(variables, SizeIs(6)) << seed;
    ASSERT_THAT(values, SizeIs(2)) << seed;
  }
}

TEST(Task, EveryNumberIsCounted) {
  std::map<std::string, int> times;
  for (uint64_t seed = 0; seed < 900; ++seed) {
    ++times[MakeTaskDocument(NeedleTask::kCount, Filler(), 255, 0.5, seed).answer];
  }
  EXPECT_THAT(times, SizeIs(9));
  for (int n = 1; n <= 9; ++n) EXPECT_NEAR(times[absl::StrCat(" ", n)], 100, 35) << n;
}

TEST(Task, TheSameSeedGivesTheSameDocumentAndOthersOthers) {
  for (const NeedleTask task : kTasks) {
    std::set<std::string> documents;
    for (uint64_t seed = 0; seed < 100; ++seed) {
      const TaskDocument document = MakeTaskDocument(task, Filler(), 300, 0.5, seed);
      EXPECT_EQ(WholeOf(document), WholeOf(MakeTaskDocument(task, Filler(), 300, 0.5, seed)));
      documents.insert(WholeOf(document));
    }
    EXPECT_GT(documents.size(), 95u) << NameOf(task);
  }
}

TEST(Task, HasAName) {
  for (const NeedleTask task : kTasks) {
    const auto named = NeedleTaskNamed(NameOf(task));
    ASSERT_OK(named);
    EXPECT_EQ(*named, task);
  }
  EXPECT_THAT(NeedleTaskNamed("Key"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "--task: 'Key' (must be key, keys, values, trace or count); choose one"));
}

TEST(Task, WordsOfATextAreTheFiller) {
  std::string text;
  for (int i = 0; i < 200; ++i) absl::StrAppend(&text, "wörd", i, i % 2 == 0 ? "\n" : " \t");
  const auto filler = Filler::FromText(text);
  ASSERT_OK(filler);
  size_t next = 198;
  EXPECT_EQ(filler->Words(24, &next), "wörd198 wörd199 ") << "18 bytes; the next word has 6";
  EXPECT_EQ(next, 0u) << "begins again";
  for (const NeedleTask task : kTasks) {
    for (uint64_t seed = 0; seed < 50; ++seed) {
      const TaskDocument document = MakeTaskDocument(task, *filler, 2'000, 0.5, seed);
      const std::string whole = WholeOf(document);
      EXPECT_THAT(whole, SizeIs(2'000));
      EXPECT_EQ(ValidUtf8(whole), whole) << "no character is cut";
      EXPECT_THAT(whole, HasSubstr(" wörd"));
      EXPECT_EQ(document.answer, " " + AnswerOf(task, ReadDocument(document)));
    }
  }
}

TEST(Task, RefusesAFillerThatIsNoText) {
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
