// What the page gets about machines and named validation sets.
#include "server/web/json.h"

#include <cmath>
#include <string>

#include "common/job/load.h"
#include "google/protobuf/unknown_field_set.h"
#include "gtest/gtest.h"
#include "server/web/curve_text.h"

namespace nsa::server {
namespace {

TEST(NodeJson, TellsUseAndTemperatureOfAGpu) {
  v1::Node node;
  v1::GpuInfo& gpu = *node.mutable_info()->add_gpus();
  gpu.set_name("NVIDIA H100");
  gpu.set_memory_bytes(80);
  gpu.set_free_bytes(20);
  gpu.set_utilization_ratio(0.875);
  gpu.set_temperature_celsius(54);
  gpu.set_power_watts(612.5);
  EXPECT_EQ(NodeJson(node)["gpus"], Json::parse(R"([{"name": "NVIDIA H100", "memory_bytes": 80,
      "used_bytes": 60, "use": 0.875, "celsius": 54.0, "watts": 612.5}])"));
}

TEST(NodeJson, NamesItsJobs) {
  v1::Node node;
  node.add_job_ids("j1");
  node.add_job_ids("j2");
  EXPECT_EQ(NodeJson(node, {{"j1", "demo"}})["jobs"],
            Json::parse(R"([{"id": "j1", "name": "demo"}, {"id": "j2", "name": "j2"}])"));
}

TEST(NodeJson, WhatTheDriverDoesNotTellIsNull) {
  v1::Node node;
  node.mutable_info()->add_gpus();
  const Json gpu = NodeJson(node)["gpus"][0];
  for (const char* unknown : {"use", "celsius", "watts"}) EXPECT_TRUE(gpu[unknown].is_null());
}

TEST(JobJson, HasTheWarningsAboutTheData) {
  v1::StoredJob stored;
  v1::Job view;
  ApplyDefaults(view.mutable_spec());
  EXPECT_EQ(JobJson(stored, view, 0, 0)["data_warnings"], Json::array());
  v1::DataWarning& warning = *view.mutable_progress()->mutable_corpus()->add_warnings();
  warning.set_field("data.where.lang");
  warning.set_problem("none of 9 records has the value 'xx'");
  warning.set_fix("check the spelling");
  EXPECT_EQ(
      JobJson(stored, view, 0, 0)["data_warnings"],
      Json::array({"data.where.lang: none of 9 records has the value 'xx'; check the spelling"}));
}

// A copy of the text would train another model.
TEST(JobJson, TheJobFileSaysThatTheJobHasAKeyThatIsGone) {
  v1::StoredJob stored;
  v1::Job view;
  ApplyDefaults(view.mutable_spec());
  const std::string file = ToYaml(view.spec());
  EXPECT_EQ(JobJson(stored, view, 0, 0)["config_text"], file);
  v1::TrainSpec& train = *view.mutable_spec()->mutable_train();
  train.GetReflection()->MutableUnknownFields(&train)->AddFixed64(
      train.GetDescriptor()->reserved_range(0)->start, 1);
  const auto text = JobJson(stored, view, 0, 0)["config_text"].get<std::string>();
  EXPECT_TRUE(text.starts_with("# spec.train.z_loss: is set (version ")) << text;
  EXPECT_TRUE(text.ends_with("\n" + file)) << text;
}

TEST(RowJson, TheLossIsTheMeanOfTheNewestStepsAndNotANumberIsSaid) {
  v1::Job job;
  job.set_state(v1::Job::STATE_RUNNING);
  EXPECT_TRUE(RowJson(job, 0)["loss"].is_null());
  EXPECT_EQ(RowJson(job, 0)["nonfinite"], false) << "there is none yet";
  v1::JobProgress& progress = *job.mutable_progress();
  progress.set_step(100);
  progress.set_loss(4.5);
  EXPECT_EQ(RowJson(job, 0)["loss"], 4.5) << "of a store without the mean";
  progress.set_recent_loss(2.5);
  EXPECT_EQ(RowJson(job, 0)["loss"], 2.5);
  progress.set_loss(std::nan(""));
  EXPECT_TRUE(RowJson(job, 0)["loss"].is_null());
  EXPECT_EQ(RowJson(job, 0)["nonfinite"], true);
  EXPECT_EQ(RowJson(job, 0)["val_nonfinite"], false);
  progress.set_val_step(100);
  progress.set_val_loss(std::nan(""));
  EXPECT_EQ(RowJson(job, 0)["val_nonfinite"], true);
  const Json health = RowJson(job, 0)["health"];
  EXPECT_EQ(health["level"], "bad");
  EXPECT_EQ(health["why"], "its loss is not finite");
  EXPECT_EQ(health["words"], health["state"].get<std::string>() + "; its loss is not finite");
}

v1::WorkerRecord Step(int64_t step, float loss) {
  v1::WorkerRecord record;
  record.set_unix_nanos(step * 1'000'000'000);
  record.mutable_step()->set_step(step);
  record.mutable_step()->set_total_tokens(32 * step);
  record.mutable_step()->set_loss(loss);
  record.mutable_step()->set_learning_rate(1e-45);
  record.mutable_step()->mutable_times()->set_step_seconds(1e30);
  return record;
}

TEST(StepsText, HasTheMeanAndTheSpreadOfEachValue) {
  v1::CurveBucket wide = StepBucket(Step(1, 2.5F));
  wide.set_width(2);
  MergeInto(StepBucket(Step(2, 1.5F)), &wide);
  const Json json = Json::parse(StepsText({wide, StepBucket(Step(3, std::nanf("")))}));
  EXPECT_EQ(json["width"], 2);
  EXPECT_EQ(json["step"], Json::parse("[2, 3]"));
  EXPECT_EQ(json["time"], Json::parse("[2000, 3000]"));
  EXPECT_EQ(json["tokens"], Json::parse("[64, 96]"));
  ASSERT_EQ(json["values"].size(), std::size(kStepValues));
  EXPECT_EQ(json["values"]["loss"],
            Json::parse(R"({"mean": [2.0, null], "min": [1.5, null], "max": [2.5, null]})"));
  for (const auto& [name, value] : {std::pair{"learning_rate", 1e-45F}, {"step_seconds", 1e30F}}) {
    EXPECT_EQ(json["values"][name]["mean"][0].get<float>(), value) << name;
    EXPECT_TRUE(json["values"][name]["min"][0].is_null()) << name;
  }
}

TEST(StepsText, IsWholeWithoutABucket) {
  const Json json = Json::parse(StepsText({}));
  EXPECT_EQ(json["width"], 1);
  EXPECT_EQ(json["step"], Json::array());
  EXPECT_EQ(json["values"]["skipped_nonfinite"]["max"], Json::array());
}

TEST(GpusText, HasTheMeanAndTheSpreadOfEachValue) {
  v1::WorkerRecord record;
  record.set_unix_nanos(5'000'000'000);
  record.mutable_step()->set_step(10);
  record.mutable_step()->set_total_tokens(640);
  v1::GpuInfo busy;
  busy.set_utilization_ratio(1);
  busy.set_power_watts(700);
  v1::GpuInfo idle;
  idle.set_utilization_ratio(0.5);
  EXPECT_EQ(Json::parse(GpusText({GpuBucket(record, {busy, idle})})),
            Json::parse(R"({"width": 1, "step": [10],
      "time": [5000], "tokens": [640], "values": {
        "use": {"mean": [0.75], "min": [0.5], "max": [1.0]},
        "watts": {"mean": [700.0], "min": [null], "max": [null]},
        "celsius": {"mean": [null], "min": [null], "max": [null]}}})"));
  EXPECT_EQ(Json::parse(GpusText({})), Json::object());
}

v1::WorkerRecord Eval(int64_t step, std::vector<std::pair<std::string, double>> sets) {
  v1::WorkerRecord record;
  record.set_unix_nanos(step * 1'000'000'000);
  record.mutable_eval()->set_step(step);
  for (const auto& [name, loss] : sets) {
    v1::NamedLoss& set = *record.mutable_eval()->add_sets();
    set.set_name(name);
    set.set_loss(loss);
  }
  return record;
}

TEST(ValSetCurvesJson, EachSetHasACurve) {
  EXPECT_EQ(ValSetCurvesJson({Eval(10, {{"books", 2.5}, {"code", 1.5}}), Eval(20, {{"books", 2}})}),
            Json::parse(R"({"books": {"step": [10, 20], "time": [10000, 20000], "loss": [2.5, 2.0]},
                            "code": {"step": [10], "time": [10000], "loss": [1.5]}})"));
  EXPECT_EQ(ValSetCurvesJson({Eval(10, {})}), Json::object());
}

TEST(SamplesJson, HasTheStepsAndTheTextsOfOne) {
  v1::WorkerRecord record;
  record.set_unix_nanos(5'000'000'000);
  record.mutable_sample()->set_step(20);
  record.mutable_sample()->set_prompt("The ");
  record.mutable_sample()->set_text("cell\n");
  record.mutable_sample()->set_tokens(4);
  record.mutable_sample()->set_seconds(0.5);
  EXPECT_EQ(SamplesJson({.steps = {10, 20}, .step = 20, .records = {record}}),
            Json::parse(R"({"steps": [10, 20], "step": 20,
                            "samples": [{"prompt": "The ", "text": "cell\n", "tokens": 4,
                                         "seconds": 0.5, "time": 5000, "error": ""}]})"));
  record.mutable_sample()->set_text("one\r\ntwo\rthree\x1b");
  EXPECT_EQ(SamplesJson({.records = {record}})["samples"][0]["text"], "one\ntwo\nthree\\x1b");
  EXPECT_EQ(SamplesJson({}), Json::parse(R"({"steps": [], "step": 0, "samples": []})"));
}

}  // namespace
}  // namespace nsa::server
