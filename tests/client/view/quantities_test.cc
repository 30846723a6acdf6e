// Each row of the table of quantities is in every view of the terminal that it names.
#include "common/record/quantities.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/show/curves.h"
#include "client/show/metrics_view.h"
#include "client/show/watch_view.h"
#include "gmock/gmock.h"
#include "tests/testing/fakes/fake_coordinator_service.h"
#include "tests/testing/full_records.h"

namespace nsa::client {
namespace {

using record::Of;
using record::Quantity;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(QuantitiesInTheTerminal, AreColumnsWithTheirValues) {
  v1::WatchRecordsResponse record;
  *record.mutable_record() = FullStep(1);
  for (const bool wide : {false, true}) {
    Table steps = StepTable(wide);
    AddStepRow(record, wide, &steps);
    Table layers = LayerTable();
    v1::StepRecord step;
    *step.add_layers() = FullLayer(0, true);
    AddLayerRows(step, &layers);
    for (const Quantity& quantity : record::kQuantities) {
      const record::View& view = quantity.view;
      if (view.brief == nullptr) continue;
      ASSERT_TRUE(quantity.of() == Of::kStep || quantity.of() == Of::kLayer) << quantity.name;
      const std::string text = (quantity.of() == Of::kStep ? steps : layers).Format(false);
      const std::string head = absl::AsciiStrToUpper(view.brief);
      if (view.wide && !wide) {
        EXPECT_THAT(text, Not(HasSubstr(" " + head + " "))) << quantity.name;
        continue;
      }
      EXPECT_THAT(text, HasSubstr(head)) << quantity.name;
      if (view.kind == record::View::kSeconds || quantity.word != nullptr) continue;
      const double value = quantity.of() == Of::kStep ? quantity.step(record.record().step())
                                                      : *ValueOf(quantity, step.layers(0));
      EXPECT_THAT(text, HasSubstr(" " + QuantityText(quantity, value))) << quantity.name;
    }
  }
}

TEST(QuantitiesInTheTerminal, WithACurveAreMetricsAndTheImportantOnesAreShown) {
  for (const Quantity& quantity : record::kQuantities) {
    const bool drawn = quantity.curve || quantity.name == std::string("val_loss");
    EXPECT_EQ(FindMetric(quantity.name), drawn ? &quantity : nullptr) << quantity.name;
    const auto& shown = MetricsShown();
    const auto found = std::ranges::find(shown, &quantity);
    const int place = found == shown.end() ? 0 : static_cast<int>(found - shown.begin()) + 1;
    EXPECT_EQ(place, quantity.view.chart) << quantity.name;
  }
}

TEST(QuantitiesInTheTerminal, WithANewestValueAreInTheLiveView) {
  v1::Job job = DemoJob();
  std::string lines;
  for (const std::string& line : LiveView(job, {}, {.columns = 400, .colours = false})) {
    lines += line + "\n";
  }
  for (const Quantity& quantity : record::kQuantities) {
    if (quantity.newest == nullptr) continue;
    const std::string value = QuantityText(quantity, quantity.newest(job.progress()));
    EXPECT_THAT(lines, HasSubstr(absl::StrCat(quantity.view.brief, " ", value))) << quantity.name;
  }
}

}  // namespace
}  // namespace nsa::client
