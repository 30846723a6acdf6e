// What the page reads about records in which every field has a value: curves.golden.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/record/quantities.h"
#include "server/decide/curve.h"
#include "server/web/curve_text.h"
#include "server/web/json.h"
#include "tests/testing/full_records.h"

namespace nsa::server {
namespace {

TEST(CurvesGolden, RepliesAreThoseOfToday) {
  v1::WorkerRecord low = FullStep(1);
  low.mutable_step()->mutable_layers(0)->mutable_gate()->set_collapse_ratio(0.5);
  low.mutable_step()->mutable_layers(0)->mutable_gate()->set_entropy_min(0.05);
  low.mutable_step()->set_loss(2.25);
  std::vector<v1::CurveBucket> steps, layers, gpus;
  for (const v1::WorkerRecord& record : {low, FullStep(2), FullStep(3), LostStep(4)}) {
    steps.push_back(StepBucket(record));
    layers.push_back(LayerBucket(record));
    gpus.push_back(GpuBucket(record, {FullGpu(0.5), FullGpu(1)}));
  }
  ExpectGolden("server/web/curves.golden",
               absl::StrCat("== steps\n", StepsText(steps), "\n== steps, two a bucket\n",
                            StepsText(Widen(steps, 2)), "\n== layers\n", Text(LayersJson(layers)),
                            "\n== layers, two a bucket\n", Text(LayersJson(Widen(layers, 2))),
                            "\n== gpus\n", GpusText(Widen(gpus, 4)), "\n"));
}

TEST(Quantities, HaveACurveIfTheySaySo) {
  const Json steps = Json::parse(StepsText({StepBucket(FullStep(1))}))["values"];
  const Json layers = LayersJson({LayerBucket(FullStep(1))})["values"];
  const Json gpus = Json::parse(GpusText({GpuBucket(FullStep(1), {FullGpu(0.5)})}))["values"];
  for (const record::Quantity& quantity : record::kQuantities) {
    if (!quantity.curve) continue;
    const Json& curves = quantity.of() == record::Of::kStep    ? steps
                         : quantity.of() == record::Of::kLayer ? layers
                                                               : gpus;
    EXPECT_TRUE(curves.contains(quantity.name)) << quantity.name;
  }
}

}  // namespace
}  // namespace nsa::server
