// Formatting: pure functions.
#include <cstdlib>
#include <map>

#include "client/show/document.h"
#include "client/show/human.h"
#include "client/show/job_text.h"
#include "client/show/table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "nsa/v1/job_health.pb.h"
#include "nsa/v1/job_status.pb.h"
#include "yaml-cpp/yaml.h"

namespace nsa::client {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr int64_t kNanosPerSecond = 1'000'000'000;

TEST(Text, ACorpusIsOneSentence) {
  v1::CorpusSummary corpus;
  EXPECT_EQ(CorpusText(corpus), "");
  corpus.set_documents(1200);
  corpus.set_tokens(1234567);
  corpus.set_rows(602);
  EXPECT_EQ(CorpusText(corpus), "1,200 documents, 1,234,567 tokens, 602 rows an epoch");
  corpus.set_dropped_documents(3);
  corpus.set_val_documents(1);
  corpus.set_val_tokens(2100);
  corpus.set_val_rows(1);
  EXPECT_EQ(
      CorpusText(corpus),
      "1,200 documents (3 copies of validation documents dropped), 1,234,567 tokens, 602 rows "
      "an epoch; 1 document, 2,100 tokens, 1 row for validation");
  corpus.set_null_rows(1);
  EXPECT_THAT(CorpusText(corpus), EndsWith(" validation; 1 row without a text (null) skipped"));
  corpus.set_null_rows(1'234);
  EXPECT_THAT(CorpusText(corpus), EndsWith("; 1,234 rows without a text (null) skipped"));
  corpus.set_empty_files(1);
  EXPECT_THAT(CorpusText(corpus), EndsWith(" (null) skipped; 1 empty file passed"));
  corpus.set_empty_files(1'200);
  EXPECT_THAT(CorpusText(corpus), EndsWith("; 1,200 empty files passed"));
}

TEST(StateColour, ARunThatHasDivergedIsNeverGreen) {
  for (const auto state : {v1::Job::STATE_RUNNING, v1::Job::STATE_SUCCEEDED}) {
    v1::Job job;
    job.set_state(state);
    EXPECT_EQ(StateColour(job), Colour::kGood);
    job.set_reason("DIVERGED");
    EXPECT_EQ(StateColour(job), Colour::kWarning);
    job.mutable_health()->set_level(v1::JobHealth::LEVEL_BAD);
    EXPECT_EQ(StateColour(job), Colour::kBad);
    EXPECT_EQ(HealthColour(job.health()), Colour::kBad);
  }
  v1::JobHealth note;
  note.set_level(v1::JobHealth::LEVEL_HEALTHY);
  EXPECT_EQ(HealthColour(note), Colour::kGood);
  note.add_problems("PLATEAU");
  EXPECT_EQ(HealthColour(note), Colour::kDim);
}

TEST(Human, DurationsGrowWithTheirUnits) {
  EXPECT_EQ(HumanDuration(0), "0 s");
  EXPECT_EQ(HumanDuration(59.4), "59 s");
  EXPECT_EQ(HumanDuration(59.6), "1 min 00 s");
  EXPECT_EQ(HumanDuration(192), "3 min 12 s");
  EXPECT_EQ(HumanDuration(7500), "2 h 05 min");
  EXPECT_EQ(HumanDuration(88200), "1 d 00 h");
  EXPECT_EQ(HumanDuration(273600), "3 d 04 h");
}

TEST(Human, AnUnknownDurationIsADash) {
  EXPECT_EQ(HumanDuration(-1), "-");
  EXPECT_EQ(HumanDuration(std::numeric_limits<double>::quiet_NaN()), "-");
  EXPECT_EQ(HumanDuration(std::numeric_limits<double>::infinity()), "-");
  EXPECT_EQ(HumanDuration(1e300), ">10000 d");
}

TEST(Human, AgesCountBackFromNow) {
  const absl::Time now = absl::FromUnixSeconds(1000000);
  const auto at = [](int64_t seconds_ago) { return (1000000 - seconds_ago) * kNanosPerSecond; };
  EXPECT_EQ(HumanAge(now, 0), "-");
  EXPECT_EQ(HumanAge(now, at(0)), "now");
  EXPECT_EQ(HumanAge(now, at(41)), "41 s ago");
  EXPECT_EQ(HumanAge(now, at(199)), "3 min ago");
  EXPECT_EQ(HumanAge(now, at(3 * 3600)), "3 h ago");
  EXPECT_EQ(HumanAge(now, at(50 * 3600)), "2 d ago");
  // A machine whose clock is ahead has not written in the future.
  EXPECT_EQ(HumanAge(now, at(-30)), "now");
}

TEST(Human, ATimeIsLocalAndNamesItsZone) {
  const int64_t noon = 1795176000 * kNanosPerSecond;
  for (const auto& [zone, text] :
       std::map<std::string, std::string>{{"UTC", "2026-11-20T12:00:00Z"},
                                          {"Fixed/UTC+01:00:00", "2026-11-20T13:00:00+01:00"},
                                          {"Fixed/UTC-08:30:00", "2026-11-20T03:30:00-08:30"}}) {
    setenv("TZ", zone.c_str(), 1);
    EXPECT_EQ(Timestamp(noon), text);
  }
  unsetenv("TZ");
  EXPECT_EQ(Timestamp(0), "-");
}

TEST(Human, BytesAndCountsNameTheirUnits) {
  EXPECT_EQ(HumanBytes(512), "512 B");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes(312LL << 20), "312.0 MiB");
  EXPECT_EQ(HumanBytes(1288490189), "1.20 GiB");
  EXPECT_EQ(HumanCount(950), "950");
  EXPECT_EQ(HumanCount(999.7), "1.0k");
  EXPECT_EQ(HumanCount(12345), "12.3k");
  EXPECT_EQ(HumanCount(3.1e6), "3.10M");
  EXPECT_EQ(WithCommas(0), "0");
  EXPECT_EQ(WithCommas(1234567), "1,234,567");
  EXPECT_EQ(WithCommas(-123456), "-123,456");
}

TEST(Human, ALossThatIsNotFiniteIsNamed) {
  EXPECT_EQ(HumanLoss(0), "-");
  EXPECT_EQ(HumanLoss(2.10344), "2.1034");
  EXPECT_EQ(HumanLoss(std::numeric_limits<double>::quiet_NaN()), "nan");
  EXPECT_EQ(HumanLoss(std::numeric_limits<double>::infinity()), "inf");
}

TEST(ProgressBar, HasItsWidthAndIsFullOnlyAtTheEnd) {
  EXPECT_EQ(ProgressBar(0, 8, false), "--------");
  EXPECT_EQ(ProgressBar(0.5, 8, false), "####----");
  EXPECT_EQ(ProgressBar(0.999, 8, false), "#######-");
  EXPECT_EQ(ProgressBar(1, 8, false), "########");
  EXPECT_EQ(ProgressBar(0.5, 4, true), "██░░");
  EXPECT_EQ(ProgressBar(0.375, 4, true), "█▌░░");
  for (int i = 0; i <= 100; ++i) {
    EXPECT_EQ(DisplayWidth(ProgressBar(i / 100.0, 13, true)), 13) << i;
    EXPECT_EQ(DisplayWidth(ProgressBar(i / 100.0, 13, false)), 13) << i;
  }
}

TEST(ProgressBar, ClampsWhatIsNoShare) {
  EXPECT_EQ(ProgressBar(7, 4, false), "####");
  EXPECT_EQ(ProgressBar(-1, 4, false), "----");
  EXPECT_EQ(ProgressBar(std::numeric_limits<double>::quiet_NaN(), 4, false), "----");
}

TEST(Clip, CutsNoCharacterAndSwitchesColoursOff) {
  EXPECT_EQ(Clip("abc", 5), "abc");
  EXPECT_EQ(Clip("abcdef", 3), "abc");
  EXPECT_EQ(Clip("█░█░", 2), "█░");
  EXPECT_EQ(Clip("\x1B[31mabcdef\x1B[0m", 3), "\x1B[31mabc\x1B[0m");
  EXPECT_EQ(Clip("\x1B[31mabc\x1B[0m", 3), "\x1B[31mabc\x1B[0m");
}

TEST(Shorten, MarksWhatIsCut) {
  EXPECT_EQ(Shorten("abcdef", 6, true), "abcdef");
  EXPECT_EQ(Shorten("abcdef", 5, true), "abcd…");
  EXPECT_EQ(Shorten("abcdef", 5, false), "ab...");
  EXPECT_EQ(Shorten("\x1B[31mabcdef\x1B[0m", 3, true), "\x1B[31mab\x1B[0m…");
  EXPECT_EQ(Shorten("abcdef", 1, true), "a") << "no room for a mark";
}

TEST(JoinFitting, TakesTheFirstPartsWhole) {
  EXPECT_EQ(JoinFitting({"one", "two", "three"}, "  ", 15, true), "one  two  three");
  EXPECT_EQ(JoinFitting({"one", "two", "three"}, "  ", 14, true), "one  two");
  EXPECT_EQ(JoinFitting({"one", "two"}, "  ", 2, true), "o…");
}

TEST(TableFit, LeavesOutColumnsThenShortensTexts) {
  Table table({{.title = "ID", .leave_out = 2},
               {.title = "NAME", .shorten_to = 5, .keep_ends = true},
               {.title = "LOSS", .leave_out = 1},
               {.title = "WORDS", .shorten_to = 6}});
  table.Add({"j123", "pretrain", "2.1034", "the loss rises"});
  const auto row = [&](int width) {
    Table fitted = table;
    fitted.Fit(width, true);
    return fitted.Format(false, false);
  };
  EXPECT_EQ(row(38), "j123  pretrain  2.1034  the loss rises\n");
  EXPECT_EQ(row(37), "j123  pretrain  2.1034  the loss ris…\n");
  EXPECT_EQ(row(28), "j123  p...in  2.1034  the l…\n");
  EXPECT_EQ(row(26), "pretrain  2.1034  the los…\n") << "the id is left out first";
  EXPECT_EQ(row(20), "pretrain  the loss …\n");
  EXPECT_EQ(row(2), "p...n  the l…\n") << "as narrow as it can be";
}

TEST(TableFormat, AlignsColumnsAndEndsNoLineInBlanks) {
  Table table({{"NAME"}, {"STEP", true}, {"NOTE"}});
  table.Add({"a", "12", "x"});
  table.Add({"longer", "3", ""});
  EXPECT_EQ(table.Format(false),
            "NAME    STEP  NOTE\n"
            "a         12  x\n"
            "longer     3\n");
}

TEST(DisplayWidth, IsThatOfATerminal) {
  EXPECT_EQ(DisplayWidth(""), 0);
  EXPECT_EQ(DisplayWidth("M\u00FChle"), 5);
  EXPECT_EQ(DisplayWidth("u\u0308"), 1) << "a combining mark takes no column";
  EXPECT_EQ(DisplayWidth("\u65E5\u672C"), 4);
  EXPECT_EQ(DisplayWidth("\uD55C"), 2);
  EXPECT_EQ(DisplayWidth("run \U0001F600"), 6);
  EXPECT_EQ(DisplayWidth("\x1B[31mab\x1B[0m"), 2);
  EXPECT_EQ(DisplayWidth("a\xFF"), 2);
  EXPECT_EQ(DisplayWidth("a\x1B[3"), 1) << "a sequence that is cut off";
}

TEST(Clip, KeepsWideCharactersWithinTheWidth) {
  EXPECT_EQ(ClipMiddle("abcdefghij", 10), "abcdefghij");
  EXPECT_EQ(ClipMiddle("abcdefghij", 8), "ab...hij");
  EXPECT_EQ(ClipMiddle("\u65E5\u672C\u65E5\u672C\u65E5\u672C", 8), "\u65E5...\u672C");
  EXPECT_EQ(Clip("\u65E5\u672C", 3), "\u65E5");
  EXPECT_EQ(Clip("\u65E5\u672C", 1), "");
  EXPECT_EQ(Clip("\u65E5\u672C", 4), "\u65E5\u672C");
  EXPECT_EQ(Clip("u\u0308x", 1), "u\u0308");
}

TEST(TableFormat, WideCharactersDoNotMoveColumns) {
  Table table({{"NAME"}, {"STEP", true}});
  table.Add({"\u65E5\u672C", "1"});
  table.Add({"\U0001F600", "20"});
  EXPECT_EQ(table.Format(false),
            "NAME  STEP\n"
            "\u65E5\u672C     1\n"
            "\U0001F600      20\n");
}

TEST(TableFormat, ColoursDoNotMoveColumns) {
  Table table({{"STATE"}, {"X"}});
  table.Add({{"training", Colour::kGood}, "1"});
  table.Add({{"failed", Colour::kBad}, "2"});
  std::string text = table.Format(true);
  EXPECT_THAT(text, HasSubstr("\x1B[32mtraining\x1B[0m  1"));
  EXPECT_THAT(text, HasSubstr("\x1B[31mfailed\x1B[0m    2"));
}

v1::Job HardJob() {
  v1::Job job;
  job.set_id("j1");
  job.set_name("yes");
  job.set_message("a: b # c\n\"quoted\" \xC3\xA9");
  job.set_submit_unix_nanos(1795176000123456789LL);
  (*job.mutable_spec()->mutable_labels())["123"] = "null";
  job.mutable_spec()->mutable_data()->add_path("/a b");
  job.mutable_spec()->mutable_data()->add_path("/c");
  job.add_ranks()->set_node("0x10");
  return job;
}

TEST(Document, JsonKeepsFieldNamesAndLargeIntegers) {
  const auto json = ToJson(HardJob());
  EXPECT_EQ(json["submit_unix_nanos"], "1795176000123456789");
  EXPECT_EQ(json["restarts"], 0) << "fields are there when they are 0";
  EXPECT_EQ(json["state"], "STATE_UNSPECIFIED");
}

// Every scalar of the YAML text, read by a YAML reader, is the JSON document's.
void ExpectSame(const YAML::Node& yaml, const nlohmann::ordered_json& json) {
  if (json.is_object()) {
    ASSERT_TRUE(yaml.IsMap() && yaml.size() == json.size()) << json;
    for (const auto& [key, value] : json.items()) ExpectSame(yaml[key], value);
  } else if (json.is_array()) {
    ASSERT_TRUE(yaml.IsSequence() && yaml.size() == json.size()) << json;
    for (size_t i = 0; i < json.size(); ++i) ExpectSame(yaml[i], json[i]);
  } else if (json.is_string()) {
    EXPECT_EQ(yaml.as<std::string>(), json.get<std::string>());
    // Plain scalars ("?") must be such that no reader takes them for another type.
    if (yaml.Tag() == "?") {
      bool boolean;
      double number;
      EXPECT_FALSE(YAML::convert<bool>::decode(yaml, boolean)) << json;
      EXPECT_FALSE(YAML::convert<double>::decode(yaml, number)) << json;
    }
  } else if (json.is_null()) {
    EXPECT_TRUE(yaml.IsNull());
  } else if (json.is_boolean()) {
    EXPECT_EQ(yaml.as<bool>(), json.get<bool>());
  } else {
    EXPECT_EQ(yaml.as<double>(), json.get<double>());
  }
}

TEST(Document, YamlIsTheSameDocument) {
  const auto json = ToJson(HardJob());
  ExpectSame(YAML::Load(YamlText(json)), json);
  const nlohmann::ordered_json nested = {{"a", {{1, 2}, {{{"b", {3}}, {"c", {}}}}}}};
  ExpectSame(YAML::Load(YamlText(nested)), nested);
}

TEST(Document, BytesThatAreNotUtf8AreReplacedAndNotFatal) {
  EXPECT_EQ(JsonText("a\xFF", true), "\"a\xEF\xBF\xBD\"\n");
}

}  // namespace
}  // namespace nsa::client
