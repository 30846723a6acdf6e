// The table of docs/preflight.md is that of the code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/strings/str_format.h"
#include "common/preflight/rules.h"
#include "tests/testing/paths.h"

namespace nsa {
namespace {

std::string Readme() {
  std::ifstream in(SourceDir() + "/docs/preflight.md");
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

const char* Word(v1::Severity severity) {
  switch (severity) {
    case v1::SEVERITY_ERROR:
      return "error";
    case v1::SEVERITY_WARNING:
      return "warning";
    case v1::SEVERITY_INFO:
      return "note";
    default:
      return "–";
  }
}

const char* Word(MayPass may_pass) {
  switch (may_pass) {
    case MayPass::kYes:
      return "yes";
    case MayPass::kOnceMemoryIsFree:
      return "when memory is free";
    default:
      return "no";
  }
}

TEST(CommonReadme, ListsEveryRuleOfPreflightAsItIs) {
  const std::string readme = Readme();
  for (const PreflightRule& rule : AllRules()) {
    const std::string row =
        absl::StrFormat("| %s | %s | %s | %s | %s | %s |\n", std::string(rule.id),
                        std::string(rule.summary), Word(rule.production), Word(rule.experiment),
                        rule.waivable ? "yes" : "no", Word(rule.may_pass));
    EXPECT_NE(readme.find(row), std::string::npos) << "missing row:\n" << row;
  }
}

TEST(CommonReadme, ListsNoRuleThatIsNotThere) {
  size_t rows = 0;
  std::istringstream lines(Readme());
  for (std::string line; std::getline(lines, line);) {
    const bool row =
        std::count(line.begin(), line.end(), '|') == 7 && line[2] >= 'A' && line[2] <= 'Z';
    rows += row ? 1 : 0;
  }
  EXPECT_EQ(rows, AllRules().size());
}

}  // namespace
}  // namespace nsa
