// What preflight says about the time of communication between ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "common/estimate/communication.h"
#include "common/estimate/estimate.h"
#include "tests/common/preflight/preflight_cases.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class Links : public testing::Test {
 protected:
  Links() {
    job.spec.mutable_resources()->set_gpus(2);
    job.spec.mutable_resources()->set_nodes(2);
    job.spec.mutable_train()->set_batch_size(32);
    job.machine.rank_address = "10.0.0.2";
  }
  std::map<std::string, double> Estimates() {
    std::map<std::string, double> values;
    const v1::PreflightReport report = job.Check();
    for (const v1::EstimateItem& item : report.estimates()) values[item.name()] = item.value();
    return values;
  }
  std::string Slow() {
    const v1::PreflightReport report = job.Check();
    const v1::Finding* finding = FindingOf(report, "COMMUNICATION_SLOW");
    return finding == nullptr ? "" : absl::StrCat(finding->problem(), "; ", finding->fix());
  }
  // The speed at which two ranks communicate for as long as they compute.
  int64_t BitsOfEqualTimes() {
    job.machine.rank_link_bits_per_second = 1'000'000'000;
    const double step = Estimates().at("time of a step, computing");
    return static_cast<int64_t>(8 * static_cast<double>(GradientBytes(job.Check().spec())) / step);
  }
  GoodJob job;
};

TEST_F(Links, AWarningComesWhenCommunicationTakesLongerThanTheStep) {
  const int64_t equal = BitsOfEqualTimes();
  job.machine.rank_link_bits_per_second = equal + equal / 100;
  EXPECT_EQ(Slow(), "");
  job.machine.rank_link_bits_per_second = equal - equal / 100;
  EXPECT_THAT(Slow(), HasSubstr("2 ranks: gradients 326 MB a step; at "));
  EXPECT_THAT(Slow(), HasSubstr("runtime.gradient_precision: bf16"));
  EXPECT_TRUE(job.Check().accepted()) << "a warning refuses nothing";
  job.spec.mutable_runtime()->set_gradient_precision(v1::PRECISION_BF16);
  EXPECT_EQ(Slow(), "") << "half as many bytes";
}

TEST_F(Links, TheEstimateSaysBothTimesOfAStep) {
  job.machine.rank_link_bits_per_second = 10'000'000'000;
  std::map<std::string, double> values = Estimates();
  const auto bytes = static_cast<double>(GradientBytes(job.Check().spec()));
  const double computing = values.at("time of a step, computing");
  const double sum = bytes / 1.25e9;
  EXPECT_EQ(values.at("gradients a step"), bytes);
  EXPECT_DOUBLE_EQ(values.at("time of its gradients at 10 Gbit/s"), sum);
  EXPECT_DOUBLE_EQ(values.at("a step if they overlap"), std::max(computing, sum));
  EXPECT_DOUBLE_EQ(values.at("a step if they do not"), computing + sum);
  EXPECT_THAT(FormatReport(job.Check(), ""), HasSubstr("0.26 s\n"));
}

TEST_F(Links, ASpeedThatIsNotKnownIsSaidAndGivesNoTime) {
  EXPECT_EQ(Estimates().count("gradients a step (speed of the network between machines unknown)"),
            1u);
  EXPECT_THAT(FormatReport(job.Check(), ""), Not(HasSubstr("a step if they overlap")));
  EXPECT_EQ(Slow(), "");
  job.context.machine = nullptr;
  EXPECT_EQ(Estimates().count("gradients a step (speed of the network between machines unknown)"),
            1u);
}

TEST_F(Links, GpusOfOneMachineUseTheSlowestOfTheirLinks) {
  job.spec.mutable_resources()->set_nodes(1);
  job.machine.gpus.resize(2, job.machine.gpus[0]);
  EXPECT_EQ(Estimates().count("gradients a step (speed of the links between GPUs unknown)"), 1u);
  job.machine.gpus[0].link_bytes_per_second = 450e9;
  job.machine.gpus[0].nvlink = true;
  job.machine.gpus[1] = job.machine.gpus[0];
  EXPECT_EQ(Estimates().count("time of its gradients at NVLink, 450 GB/s"), 1u);
  EXPECT_EQ(Slow(), "");
  job.machine.gpus[1].link_bytes_per_second = 1e9;
  job.machine.gpus[1].nvlink = false;
  EXPECT_THAT(Slow(), HasSubstr("at PCIe, 1 GB/s 0.33 s"));
  EXPECT_THAT(Slow(), HasSubstr("or use fewer GPUs"));
}

// A rank cannot keep the sums of its passes, so that more of them do not help.
TEST_F(Links, DividedGradientsAreAdvisedToTravelOnceInAStep) {
  job.spec.mutable_resources()->set_nodes(1);
  job.machine.gpus.resize(2, job.machine.gpus[0]);
  for (MachineView::Gpu& gpu : job.machine.gpus) gpu.link_bytes_per_second = 1e9;
  EXPECT_THAT(Slow(), HasSubstr("train.accumulate_grad_batches"));
  job.spec.mutable_runtime()->set_shard(v1::SHARD_GRADIENTS);
  EXPECT_THAT(Slow(), HasSubstr("runtime.shard: optimizer, which sums once in a step"));
  EXPECT_THAT(Slow(), Not(HasSubstr("train.accumulate_grad_batches")));
  EXPECT_THAT(Slow(), HasSubstr("2 ranks: gradients "));
  job.spec.mutable_runtime()->set_shard(v1::SHARD_PARAMETERS);
  EXPECT_THAT(Slow(), HasSubstr("2 ranks: gradients and weights "));
}

TEST_F(Links, NothingIsSaidOfRanksThatSendNothingOverALink) {
  job.spec.mutable_resources()->set_nodes(1);
  job.spec.mutable_resources()->set_gpus(1);
  EXPECT_THAT(FormatReport(job.Check(), ""), Not(HasSubstr("gradients a step")));
  job.spec.mutable_resources()->set_gpus(2);
  job.MoveToCpu();
  EXPECT_THAT(FormatReport(job.Check(), ""), Not(HasSubstr("gradients a step")));
}

}  // namespace
}  // namespace nsa
