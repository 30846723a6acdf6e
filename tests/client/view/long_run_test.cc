// What nsactl draws of a long run, against a coordinator with its page: both show the same points.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "client/cli.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "server/store/job_store.h"
#include "tests/server/server_fixture.h"
#include "tests/testing/net/http_get.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kSteps = 200'000;
constexpr int64_t kEvery = 4;  // a record each
constexpr int64_t kRestartAfter = 100'000;
constexpr int64_t kWait = 7'200;         // seconds, before the second start
constexpr double kStepSeconds = 0.0625;  // of a step

class LongRunTest : public ServerTest {
 protected:
  LongRunTest() {
    metrics_address_ = "127.0.0.1:0";
    Restart();
    id_ = Submit(Spec("long"));
    server_.reset();
    Fill();
    Start();
  }

  // Writes a run of kSteps steps in two starts into the store, whose newest 20,000 records begin in
  // the middle.
  void Fill() {
    auto store = JobStore::Open(folder_ / "state", clock_, {});
    ASSERT_OK(store.status());
    for (int64_t generation = 1; generation <= 2; ++generation) {
      SetState(store->get(), Job::STATE_RUNNING, generation);
      const int64_t first = generation == 1 ? 0 : kRestartAfter;
      v1::ReportRecordsRequest request;
      request.set_job_id(id_);
      request.set_generation(generation);
      int64_t sequence = 0;
      const auto next = [&](int64_t step) -> v1::WorkerRecord& {
        v1::WorkerRecord& record = *request.add_records();
        record.set_sequence(++sequence);
        record.set_unix_nanos(TimeOf(step, generation));
        return record;
      };
      next(first).mutable_started()->set_resumed_step(first);
      for (int64_t step = first + kEvery; step <= first + kSteps / 2; step += kEvery) {
        AddStep(step, next(step).mutable_step());
        if (step % 1'000 == 0) AddEval(step, next(step).mutable_eval());
        if (request.records_size() < 500 && step < first + kSteps / 2) continue;
        ASSERT_OK((*store)->AppendRecords(request).status());
        request.clear_records();
      }
    }
    SetState(store->get(), Job::STATE_SUCCEEDED, 2);
  }

  static int64_t TimeOf(int64_t step, int64_t generation) {
    const double waited = generation == 1 ? 0 : kWait;
    return 1'000'000 * kSecond +
           static_cast<int64_t>((waited + kStepSeconds * static_cast<double>(step)) * kSecond);
  }
  static void AddStep(int64_t step, v1::StepRecord* record) {
    record->set_step(step);
    const bool lost = step > 4'000 && step <= 4'400;
    record->set_loss(lost ? std::numeric_limits<double>::quiet_NaN()
                          : 10 / std::sqrt(static_cast<double>(step)));
    record->set_grad_norm(1 + static_cast<double>(step % 7));
    record->set_tokens_per_second(1000 + static_cast<double>(step % 13));
    record->set_total_tokens(100 * step);
    record->mutable_times()->set_step_seconds(kStepSeconds);
  }
  static void AddEval(int64_t step, v1::EvalRecord* record) {
    record->set_step(step);
    record->set_loss(11 / std::sqrt(static_cast<double>(step)));
  }
  void SetState(JobStore* store, Job::State state, int64_t generation) {
    ASSERT_OK(store
                  ->Update(id_,
                           [&](v1::StoredJob* job, std::vector<v1::JobEvent>*) {
                             job->mutable_job()->set_state(state);
                             job->mutable_job()->set_generation(generation);
                             return absl::OkStatus();
                           })
                  .status());
  }

  Json Page() {
    const std::string answer =
        HttpGet(server_->metrics_address(), absl::StrCat("/api/v1/jobs/", id_, "/curves"));
    return Json::parse(answer.substr(std::min(answer.find("\r\n\r\n") + 4, answer.size())));
  }
  std::string Nsactl(std::vector<std::string> arguments) {
    arguments.insert(
        arguments.begin(),
        {"--address", absl::StrCat("unix:", (folder_ / "state/coordinator.sock").string())});
    std::ostringstream out;
    std::ostringstream err;
    std::istringstream in;
    client::Interrupt interrupt;
    client::Session session(
        {.out = &out, .err = &err, .unicode = true, .columns = [] { return 100; }, .in = &in},
        &clock_, &interrupt);
    client::Cli cli(&session);
    EXPECT_EQ(cli.Main(arguments), client::ExitCode::kOk) << err.str();
    return out.str();
  }
  Json Plot(const std::string& metric, const std::string& across) {
    const std::string text =
        Nsactl({"plot", id_, "--metric", metric, "--x", across, "--output", "json"});
    return Json::parse(text)["charts"][0]["curves"];
  }

  std::string id_;
};

TEST_F(LongRunTest, NsactlAndThePageShowTheSamePoints) {
  const Json page = Page();
  ASSERT_GT(page["step"].size(), 1'000u);
  EXPECT_LE(page["step"][0], 128) << "from the beginning";
  EXPECT_EQ(page["step"].back(), kSteps);
  for (const std::string metric : {"loss", "grad_norm", "tokens_per_second", "step_seconds"}) {
    const Json curve = Plot(metric, "steps")[0];
    EXPECT_EQ(curve["x"], page["step"]) << metric;
    const Json& mean = page["values"][metric]["mean"];
    ASSERT_EQ(curve["y"].size(), mean.size()) << metric;
    for (size_t i = 0; i < mean.size(); ++i) {
      EXPECT_EQ(curve["y"][i], mean[i].is_null() ? Json("NaN") : mean[i]) << metric << " " << i;
    }
    EXPECT_EQ(Plot(metric, "tokens")[0]["x"], page["tokens"]) << metric;
  }
  const Json validations = Plot("loss", "steps")[1];
  EXPECT_EQ(validations["x"], page["evals"]["validation"]["step"]);
  EXPECT_EQ(validations["y"], page["evals"]["validation"]["loss"]);
}

TEST_F(LongRunTest, GetCurvesHasTheBitsOfThePage) {
  const Json page = Page();
  v1::GetCurvesRequest request;
  request.set_job("long");
  const auto all =
      Call<v1::GetCurvesResponse>(&v1::CoordinatorService::Stub::GetCurves, people_.get(), request);
  ASSERT_OK(all.status());
  EXPECT_LT(all->ByteSizeLong(), 1'000'000u);
  EXPECT_EQ(page["width"], all->steps().width());
  for (const v1::CurveColumn& column : all->steps().columns()) {
    const Json& values = page["values"][column.name()];
    for (int i = 0; i < all->steps().last_step_size(); ++i) {
      EXPECT_EQ(page["step"][i], all->steps().last_step(i));
      EXPECT_EQ(page["time"][i], all->steps().unix_nanos(i) / 1'000'000);
      const auto same = [&](const char* part, float value) {
        const Json& shown = values[part][i];
        return shown.is_null() ? std::isnan(value) || value == column.mean(i)
                               : shown.get<float>() == value;
      };
      EXPECT_TRUE(same("mean", column.mean(i)) && same("min", column.least(i)) &&
                  same("max", column.greatest(i)))
          << column.name() << " " << i;
    }
  }
}

TEST_F(LongRunTest, OverTimeEveryValidationLiesInItsPlace) {
  const Json curves = Plot("loss", "time");
  const std::vector<double> seconds = curves[0]["x"];
  EXPECT_NEAR(seconds.back(), kStepSeconds * kSteps, 20) << "without the wait of two hours";
  const std::vector<double> x = curves[1]["x"];
  ASSERT_EQ(x.size(), static_cast<size_t>(kSteps / 1'000));
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(x[i], kStepSeconds * 1'000 * static_cast<double>(i + 1), 20) << i;
  }
}

TEST_F(LongRunTest, EveryCommandShowsTheWholeRun) {
  EXPECT_THAT(Nsactl({"plot", id_}), AllOf(HasSubstr("100 values are NaN or infinite (×)"),
                                           HasSubstr(" 50k"), HasSubstr("200k")));
  const std::string file = (folder_ / "report.html").string();
  Nsactl({"report", id_, "-o", file});
  std::stringstream page;
  page << std::ifstream(file).rdbuf();
  EXPECT_THAT(page.str(), HasSubstr("100 values are NaN or infinite"));
  const Json compared = Json::parse(Nsactl({"compare", id_, Submit(Spec("other")), "-o", "json"}));
  EXPECT_EQ(compared["jobs"][0]["best_val_step"], kSteps);
  EXPECT_NEAR(compared["jobs"][0]["tokens_per_second"], 1006, 3);
}

}  // namespace
}  // namespace nsa::server
