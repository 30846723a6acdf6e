// The keys of a job and their values, as a job file has them.
#include "common/job/flat_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/job/load.h"
#include "common/preflight/fork.h"
#include "tests/common/job/every_field.h"

namespace nsa {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

v1::JobSpec Job(const std::string& yaml) {
  v1::JobSpec spec;
  EXPECT_TRUE(LoadYamlText(yaml, "x.yaml", &spec).ok()) << yaml;
  return spec;
}

std::vector<std::string> Lines(const v1::JobSpec& spec, UnsetKeys unset = UnsetKeys::kLeftOut) {
  std::vector<std::string> lines;
  for (const FlatKey& key : FlatKeys(spec, unset)) {
    lines.push_back(absl::StrCat(key.key, ": ", key.Text()));
  }
  return lines;
}

TEST(FlatKeys, AreThoseOfTheJobFile) {
  EXPECT_THAT(
      Lines(Job("{name: a b, data: {path: [x, y], where: {meta.source: [b, 2]}, "
                "val_where: {v1.2: {lang: en}, books: {lang: de}}, "
                "mix: [{name: m, source: jsonl, except: {k: z}}]}, "
                "nsa: {layers: [full], phi: avg}, train: {lr: 3e-3, seed: 7}, sample: {}}")),
      ElementsAre("name: a b", "nsa.phi: avg", "nsa.layers: [full]", "data.path: [x, y]",
                  "data.mix[0].name: m", "data.mix[0].source: jsonl", "data.mix[0].except.k: [z]",
                  "data.where.meta.source: [b, 2]", "data.val_where.books.lang: [de]",
                  "data.val_where.\"v1.2\".lang: [en]", "train.lr: 0.003", "train.seed: 7",
                  "sample: {}"));
}

TEST(FlatKeys, UnsetOnesAreShownWhereAsked) {
  const std::vector<std::string> lines = Lines(Job("{nsa: {l: 8}, sample: {}}"), UnsetKeys::kShown);
  EXPECT_THAT(lines, Contains("nsa.phi: -"));
  EXPECT_THAT(lines, Contains("nsa.layers: []"));
  EXPECT_THAT(lines, Contains("name: "));
  EXPECT_THAT(lines, Not(Contains("sample: {}")));
}

TEST(FlatKeys, NoKeyOfAJobIsMissing) {
  const v1::JobSpec spec = JobWithEveryField();
  const std::vector<std::string> lines = Lines(spec);
  EXPECT_EQ(lines, Lines(spec, UnsetKeys::kShown)) << "all are set";
  for (const std::string& line : lines) {
    EXPECT_EQ(line.find("_UNSPECIFIED"), std::string::npos) << line;
    EXPECT_EQ(line.find(".value"), std::string::npos) << line;
  }
}

TEST(Differences, AreWrittenAsInAJobFile) {
  EXPECT_EQ(Differences(Job("{nsa: {phi: mlp, layers: [full, win]}, data: {source: jsonl, where: "
                            "{s: [a, b]}}, train: {lr: 0.001}}"),
                        Job("{nsa: {phi: avg, layers: [full]}, data: {source: jsonl, where: "
                            "{s: [a, 'c d']}, val_except: {v: {t: x}}}, train: {lr: 0.003}}")),
            "data.where.s[1]: b -> \"c d\"; deleted: nsa.layers[1]: win; nsa.phi: mlp -> avg; "
            "train.lr: 0.001 -> 0.003; added: data.val_except.v.t[0]: x");
}

TEST(Differences, AreNeverEmptyForJobsThatDiffer) {
  const v1::JobSpec spec = JobWithEveryField();
  EXPECT_EQ(Differences(spec, spec), "");
  v1::JobSpec newer = spec;
  newer.GetReflection()->MutableUnknownFields(&newer)->AddVarint(9999, 1);
  EXPECT_EQ(Differences(spec, newer), "keys of another version");
  EXPECT_EQ(Differences(Job("{}"), Job("{sample: {}}")), "added: sample: {}");
}

}  // namespace
}  // namespace nsa
