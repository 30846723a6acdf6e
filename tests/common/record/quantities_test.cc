// The table of quantities agrees with itself and with what is on disk.
#include "common/record/quantities.h"

#include <cmath>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "tests/testing/full_records.h"
#include "tests/testing/paths.h"

namespace nsa::record {
namespace {

using testing::ElementsAre;
using testing::IsSupersetOf;

// The curves in the stores of coordinators have these names.
TEST(Quantities, ACurveKeepsItsName) {
  EXPECT_THAT(kCurveNames<Of::kStep>,
              IsSupersetOf({"loss", "learning_rate", "grad_norm", "tokens_per_second",
                            "data_seconds", "forward_seconds", "backward_seconds",
                            "communication_seconds", "optimizer_seconds", "step_seconds",
                            "memory_bytes", "memory_reserved_bytes", "skipped_nonfinite"}));
  EXPECT_THAT(
      kCurveNames<Of::kLayer>,
      IsSupersetOf({"gate_entropy", "gate_entropy_min", "gate_max", "gate_collapse", "share_cmp",
                    "share_sel", "share_win", "gate_cmp", "gate_sel", "gate_win", "keys_mean",
                    "keys_at_max", "mass_kept", "mass_kept_p10", "mass_window", "choice_overlap",
                    "choice_entropy", "choice_agreement"}));
  EXPECT_THAT(kCurveNames<Of::kGpu>, IsSupersetOf({"use", "watts", "celsius"}));
}

TEST(Quantities, EachIsReadInOneWayAndHasItsNamesAlone) {
  std::set<std::pair<Of, std::string>> names;
  std::set<std::tuple<Of, Part, std::string>> columns;
  std::set<std::string> tags;
  for (const Quantity& quantity : kQuantities) {
    const int readers = (quantity.step != nullptr) + (quantity.word != nullptr) +
                        (quantity.layer != nullptr) + (quantity.gpu != nullptr) +
                        (quantity.validation != nullptr);
    EXPECT_EQ(readers, 1) << quantity.name;
    EXPECT_EQ(quantity.word != nullptr, quantity.form.kind == Form::kWord) << quantity.name;
    EXPECT_TRUE(names.emplace(quantity.of(), quantity.name).second) << quantity.name;
    EXPECT_NE(std::string(quantity.meaning), "") << quantity.name;
    if (quantity.csv != nullptr) {
      EXPECT_TRUE(columns.emplace(quantity.of(), quantity.part, quantity.csv).second)
          << quantity.csv;
    }
    if (quantity.tensorboard != nullptr) {
      EXPECT_TRUE(tags.insert(quantity.tensorboard).second) << quantity.tensorboard;
    }
    EXPECT_EQ(quantity.series.label != nullptr, quantity.series.value != nullptr) << quantity.name;
  }
}

TEST(Quantities, EachHasAValueInARecordWithAllFields) {
  for (const Quantity& quantity : kQuantities) {
    if (quantity.of() == Of::kLayer) {
      EXPECT_NE(MeasuredValueOf(quantity, FullLayer(0, true)).value_or(0), 0) << quantity.name;
    } else if (quantity.of() == Of::kGpu) {
      EXPECT_NE(quantity.gpu(FullGpu(0.5)).value_or(0), 0) << quantity.name;
      EXPECT_FALSE(quantity.gpu(v1::GpuInfo()).has_value()) << quantity.name;
    } else if (quantity.of() == Of::kValidation) {
      EXPECT_NE(quantity.validation(FullEval(1).eval()), 0) << quantity.name;
    } else if (quantity.word == nullptr) {
      EXPECT_NE(quantity.step(FullStep(1).step()), 0) << quantity.name;
    }
  }
}

TEST(Quantities, ALayerHasNoValueOfAPartThatItLacks) {
  v1::LayerStats empty;
  v1::LayerStats full = FullLayer(0, true);
  full.mutable_audit()->mutable_choice()->set_free_choices(0);
  for (const Quantity& quantity : kQuantities) {
    if (quantity.of() != Of::kLayer) continue;
    EXPECT_FALSE(ValueOf(quantity, empty).has_value()) << quantity.name;
    EXPECT_TRUE(ValueOf(quantity, full).has_value()) << quantity.name;
    if (std::string(quantity.name) != "choice_entropy") continue;
    EXPECT_FALSE(MeasuredValueOf(quantity, full).has_value()) << "0 of no choice";
  }
}

TEST(Quantities, WhatAStepComputesHasAnOrder) {
  std::vector<std::string> names;
  for (const Quantity* quantity : kComputed) {
    ASSERT_NE(quantity, nullptr) << "places without a gap";
    EXPECT_TRUE(quantity->step != nullptr) << quantity->name;
    names.emplace_back(quantity->name);
  }
  EXPECT_THAT(names, ElementsAre("tokens", "learning_rate", "loss", "grad_norm"));
}

TEST(Quantities, TheNewestValueIsReadWhereItIsSet) {
  for (const Quantity& quantity : kQuantities) {
    ASSERT_EQ(quantity.newest != nullptr, quantity.set_newest != nullptr) << quantity.name;
    if (quantity.newest == nullptr) continue;
    ASSERT_TRUE(quantity.step != nullptr) << quantity.name;
    v1::JobProgress progress;
    quantity.set_newest(&progress, 0.25);
    EXPECT_EQ(quantity.newest(progress), 0.25) << quantity.name;
  }
}

TEST(Quantities, AStepIsSkippedWhenTheseAreNotFinite) {
  std::vector<std::string> names;
  for (const Quantity& quantity : kQuantities) {
    if (!quantity.must_be_finite) continue;
    EXPECT_TRUE(quantity.step != nullptr && quantity.curve) << quantity.name;
    names.emplace_back(quantity.name);
  }
  EXPECT_THAT(names, ElementsAre("loss", "grad_norm"));
}

TEST(Quantities, WhatHasACurveOrAColumnHasALabelOfItsOwn) {
  std::set<std::string> labels;
  std::set<std::pair<Of, std::string>> heads;
  std::set<int> charts;
  for (const Quantity& quantity : kQuantities) {
    const View& view = quantity.view;
    const bool shown = quantity.curve || view.brief != nullptr || view.chart > 0;
    EXPECT_TRUE(!shown || view.label != nullptr) << quantity.name;
    if (view.label != nullptr) {
      EXPECT_TRUE(labels.insert(view.label).second) << view.label;
      EXPECT_EQ(view.kind == View::kWord, quantity.word != nullptr) << quantity.name;
      EXPECT_EQ(view.kind == View::kBytes, quantity.form.kind == Form::kBytes) << quantity.name;
      EXPECT_EQ(view.kind == View::kSeconds, std::string(quantity.unit) == "s") << quantity.name;
    }
    if (view.brief != nullptr) {
      EXPECT_TRUE(heads.emplace(quantity.of(), view.brief).second) << view.brief;
    }
    if (view.chart > 0) {
      EXPECT_TRUE(charts.insert(view.chart).second) << quantity.name;
      EXPECT_TRUE(quantity.curve) << quantity.name << " has no curve";
    }
    EXPECT_TRUE(!view.map || quantity.of() == Of::kLayer) << quantity.name;
    EXPECT_TRUE(!view.compared || (quantity.of() == Of::kStep && view.chart > 0)) << quantity.name;
  }
  EXPECT_EQ(*charts.rbegin(), static_cast<int>(charts.size())) << "places without a gap";
}

std::string Page() {
  std::ifstream in(SourceDir() + "/docs/results.md");
  return std::string(std::istreambuf_iterator<char>(in), {});
}

TEST(Quantities, ColumnsOfTrainingCsvAreInTheDocumentAsTheyAre) {
  const std::string page = Page();
  for (const Quantity& quantity : kQuantities) {
    if (quantity.of() != Of::kStep || quantity.csv == nullptr) continue;
    const std::string row = absl::StrFormat("| `%s` | %s%s| %s |\n", quantity.csv, quantity.unit,
                                            *quantity.unit == '\0' ? "" : " ", quantity.meaning);
    EXPECT_THAT(page, testing::HasSubstr(row));
  }
}

TEST(Quantities, ColumnsOfTheOtherTablesAreInTheDocumentInTheirOrder) {
  const std::string page = Page();
  std::map<std::string, size_t> at;  // in the row of the file
  for (const Quantity& quantity : kQuantities) {
    if (quantity.csv == nullptr || quantity.of() == Of::kStep) continue;
    const std::string file = quantity.of() == Of::kValidation ? "val.csv"
                             : quantity.part == Part::kAudit  ? "attention_audit.csv"
                                                              : "k_stats.csv";
    if (!at.contains(file)) at[file] = page.find(absl::StrCat("| `", file, "` | `step`"));
    ASSERT_NE(at[file], std::string::npos) << file;
    const size_t found = page.find(absl::StrCat("`", quantity.csv, "`"), at[file]);
    EXPECT_LT(found, page.find('\n', at[file])) << quantity.csv << " in the row of " << file;
    at[file] = found;
  }
}

TEST(Kept, IsTheMeanTheLeastOrTheGreatest) {
  const auto kept = [](Keep keep, std::initializer_list<double> values) {
    Kept all(keep);
    for (const double value : values) all.Add(value);
    return all.Result();
  };
  EXPECT_EQ(kept(Keep::kMean, {1, -4}), -1.5);
  EXPECT_EQ(kept(Keep::kLeast, {1, -4}), -4);
  EXPECT_EQ(kept(Keep::kGreatest, {-1, -4}), -1);
  EXPECT_EQ(kept(Keep::kMean, {}), std::nullopt);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(*kept(Keep::kMean, {1, nan})));
  EXPECT_EQ(kept(Keep::kGreatest, {nan, 2}), 2);
  EXPECT_TRUE(std::isnan(*kept(Keep::kGreatest, {nan})));
}

TEST(SourceName, IsTheWordOfAJobFile) {
  EXPECT_EQ(SourceName(v1::DATA_SOURCE_JSONL), "jsonl");
  EXPECT_EQ(SourceName(v1::DATA_SOURCE_UNSPECIFIED), "mix");
  EXPECT_EQ(SourceName(static_cast<v1::DataSource>(99)), "unknown(99)");
}

}  // namespace
}  // namespace nsa::record
