// Malicious input quickly causes an error with a line and a column.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/job/load.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

// Most CPU time in seconds until the error. Sanitizers make the code about ten times slower.
#if defined(__SANITIZE_ADDRESS__) || defined(_GLIBCXX_TSAN)
constexpr double kMostSeconds = 20;
#else
constexpr double kMostSeconds = 2;
#endif

std::string HostileError(std::string_view text) {
  v1::JobSpec spec;
  const std::clock_t start = std::clock();
  const auto result = LoadYamlText(text, "x.yaml", &spec);
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, kMostSeconds);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string error(result.status().message());
  EXPECT_THAT(error.substr(0, error.find('\n')), MatchesRegex("x.yaml:[0-9]+:[0-9]+: [^:]+: .+"));
  return error;
}

std::string Repeated(std::string_view text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) absl::StrAppend(&all, std::string(text));
  return all;
}

TEST(HostileYaml, AnAliasBombIsRefusedBeforeAnythingExpands) {
  std::string bomb = "a0: &a0 [lol, lol, lol]\n";
  for (int i = 1; i < 30; ++i) {
    absl::StrAppend(&bomb, "a", i, ": &a", i, " [*a", i - 1, ", *a", i - 1, ", *a", i - 1, "]\n");
  }
  EXPECT_THAT(HostileError(bomb), HasSubstr("anchor (&name); remove it"));
}

TEST(HostileYaml, ACyclicAliasIsRefused) {
  EXPECT_THAT(HostileError("&x\n- *x\n"), HasSubstr("alias (*name)"));
}

TEST(HostileYaml, AMillionLevelsAreRefusedAtOnce) {
  EXPECT_THAT(HostileError(std::string(1'000'000, '[')),
              StartsWith("x.yaml:1:17: yaml: more than 32"));
  EXPECT_THAT(HostileError(std::string(1'000'000, '{')), HasSubstr("more than 32 levels"));
  EXPECT_THAT(HostileError(Repeated("- ", 500'000)), HasSubstr("more than 32 levels"));
  EXPECT_THAT(HostileError(Repeated("? ", 500'000)), HasSubstr("more than 32 levels"));
  EXPECT_THAT(HostileError(Repeated("[a,", 300'000)), HasSubstr("more than 32 levels"));
  std::string nested;
  for (int i = 0; i < 40; ++i) absl::StrAppend(&nested, std::string(i, ' '), "a:\n");
  EXPECT_THAT(HostileError(nested), HasSubstr("more than 32 levels"));
}

TEST(HostileYaml, ThirtyTwoLevelsAreOnlyAnUnknownKey) {
  const std::string text = "a: " + std::string(31, '[') + std::string(31, ']');
  EXPECT_THAT(HostileError(text), HasSubstr("unknown key"));
}

TEST(HostileYaml, MoreThanOneMebibyteIsRefused) {
  EXPECT_THAT(HostileError("# " + std::string(1 << 20, 'x')), HasSubstr("at most 1048576"));
}

TEST(HostileYaml, AMebibyteOfEmptyValuesIsRefusedByTheirNumber) {
  EXPECT_THAT(HostileError("a: [" + Repeated("a,", 500'000) + "]"),
              HasSubstr("more than 100000 values"));
}

TEST(HostileYaml, AMebibyteOfKeysInOneSectionEndsInTime) {
  std::string text = "labels:\n";
  for (int i = 0; i < 20'000; ++i) absl::StrAppend(&text, "  k", i, ": v\n");
  absl::StrAppend(&text, "  k0: v\n");
  EXPECT_THAT(HostileError(text), HasSubstr("given twice"));
}

TEST(HostileYaml, SecondDocumentsAreRefused) {
  EXPECT_THAT(HostileError("name: a\n---\nname: b\n"),
              StartsWith("x.yaml:2:1: yaml: a second document starts here"));
  EXPECT_THAT(HostileError("name: a\n...\n---\n- 1\n"), HasSubstr("second document"));
}

TEST(HostileYaml, TagsAreRefused) {
  for (const char* text : {"name: !!str a", "name: !a a", "name: !<tag:yaml.org,2002:str> a",
                           "name: ! a", "train: !!map {steps: 1}", "data: {path: !!seq [a]}"}) {
    EXPECT_THAT(HostileError(text), HasSubstr(": tag ")) << text;
  }
}

TEST(HostileYaml, MergeKeysAreRefused) {
  EXPECT_THAT(HostileError("train:\n  <<: {steps: 1}\n"),
              HasSubstr("merge key; write the keys out"));
}

TEST(HostileYaml, ComplexKeysAreRefused) {
  EXPECT_THAT(HostileError("? [a, b]\n: c\n"), HasSubstr("a key must be a single word"));
  EXPECT_THAT(HostileError("labels:\n  ? {a: b}\n  : c\n"),
              HasSubstr("a key must be a single word"));
}

TEST(HostileYaml, BytesThatAreNotTextAreRefusedWhereTheyAre) {
  EXPECT_THAT(HostileError(std::string("name: a\0b\n", 10)),
              StartsWith("x.yaml:1:8: yaml: NUL byte"));
  EXPECT_THAT(HostileError("name: a\nlabels: {b: \x01}\n"),
              StartsWith("x.yaml:2:13: yaml: control character 0x01"));
  EXPECT_THAT(HostileError("name: \"\x7F\"\n"), HasSubstr("control character 0x7F"));
  for (const char* bytes : {"\xC0\xAF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xFF",
                            "\x80", "\xC3", "\xE2\x82", "\xF8\x88\x80\x80\x80"}) {
    EXPECT_THAT(HostileError(absl::StrCat("name: ", bytes)),
                testing::AllOf(StartsWith("x.yaml:1:7: "), HasSubstr("not valid UTF-8")));
  }
}

TEST(HostileYaml, OtherEncodingsAreRefusedByTheirMark) {
  EXPECT_THAT(HostileError("\xFF\xFEn\0a\0"), HasSubstr("UTF-16"));
  EXPECT_THAT(HostileError("\xFE\xFF"), HasSubstr("UTF-16"));
  EXPECT_THAT(HostileError(std::string_view("\0\0\xFE\xFF", 4)), HasSubstr("UTF-32"));
  EXPECT_THAT(HostileError(std::string_view("\xFF\xFE\0\0", 4)), HasSubstr("UTF-32"));
  EXPECT_THAT(HostileError(std::string_view("n\0a\0m\0e\0", 8)), HasSubstr("NUL byte"));
}

TEST(HostileYaml, AUtf8MarkIsSkippedAndUtf8TextKept) {
  v1::JobSpec spec;
  ASSERT_TRUE(LoadYamlText("\xEF\xBB\xBFlabels: {a: größe}\n", "x.yaml", &spec).ok());
  EXPECT_EQ(spec.labels().at("a"), "größe");
}

TEST(HostileYaml, BrokenTextSaysWhere) {
  for (const char* text : {"train: {steps: 1",
                           "train:\n\tsteps: 1\n",
                           "name: \"abc",
                           "a: b: c",
                           "- a\nb: c",
                           "name: 'x",
                           "%YAML 9.9\n---\na: 1",
                           "%TAG ! x\n---\na: 1",
                           "]",
                           "}",
                           "a: |x\n  b",
                           "name: \"\\q\"",
                           "? ",
                           "!",
                           "&",
                           "*",
                           "@a",
                           "`a`",
                           "train: [",
                           "'"}) {
    EXPECT_NE(HostileError(text), "") << text;
  }
}

TEST(HostileYaml, AFileThatIsAListOrAWordIsRefused) {
  EXPECT_THAT(HostileError("- a\n- b\n"), HasSubstr("must be a section of keys"));
  EXPECT_THAT(HostileError("hello\n"), HasSubstr("must be a section of keys"));
}

TEST(HostileYaml, LongWordsAreCutInMessages) {
  EXPECT_LT(HostileError(std::string(100'000, 'k') + ": 1\n").size(), 1000u);
  EXPECT_LT(HostileError("train: {steps: " + std::string(100'000, 'v') + "}\n").size(), 1000u);
  EXPECT_LT(HostileError("runtime: {device: " + std::string(100'000, 'v') + "}\n").size(), 1000u);
}

TEST(LoadYamlFile, SaysWhyAFileCannotBeRead) {
  TempDir folder;
  v1::JobSpec spec;
  EXPECT_EQ(LoadYamlFile(folder / "none.yaml", &spec).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(LoadYamlFile(folder.path(), &spec).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(LoadYamlFile, ReadsNoMoreThanItMay) {
  v1::JobSpec spec;
  EXPECT_THAT(std::string(LoadYamlFile("/dev/zero", &spec).status().message()),
              HasSubstr("at most 1048576"));
}

}  // namespace
}  // namespace nsa
