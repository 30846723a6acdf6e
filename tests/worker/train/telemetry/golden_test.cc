// What a rank writes about records in which every field has a value: files.golden.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/record/quantities.h"
#include "common/run/atomic_file.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "nlohmann/json.hpp"
#include "tests/testing/full_records.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/telemetry/reporting.h"
#include "worker/train/telemetry/files.h"
#include "worker/train/telemetry/formats.h"

namespace nsa::train {
namespace {

// The names of fields without a value, in the message and in those within it.
std::vector<std::string> EmptyFields(const google::protobuf::Message& message) {
  std::vector<std::string> empty;
  const google::protobuf::Reflection& all = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* const field = message.GetDescriptor()->field(i);
    const bool has =
        field->is_repeated() ? all.FieldSize(message, field) > 0 : all.HasField(message, field);
    if (!has) empty.push_back(field->full_name());
    if (!has || field->is_map()) continue;
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    for (const std::string& name :
         EmptyFields(field->is_repeated() ? all.GetRepeatedMessage(message, field, 0)
                                          : all.GetMessage(message, field))) {
      empty.push_back(name);
    }
  }
  return empty;
}

TEST(Golden, RecordsHaveAValueInEveryField) {
  v1::StepRecord step = FullStep(10).step();
  step.mutable_layers(0)->set_layer(1);  // the first layer is 0, which is no value
  EXPECT_THAT(EmptyFields(step), testing::IsEmpty());
  EXPECT_THAT(EmptyFields(FullEval(10).eval()), testing::IsEmpty());
}

std::string Shown(const std::string& name, const Scalars& scalars) {
  std::string text = absl::StrCat("== ", name, "\n");
  for (const auto& [tag, value] : scalars) absl::StrAppendFormat(&text, "%s %.9g\n", tag, value);
  return text;
}

// The data of a mixture, with named validation sets.
ReporterOptions MixedOptions(const TempDir& dir) {
  ReporterOptions options = Options(dir);
  options.job_id = "j1";
  options.spec.mutable_data()->add_mix()->set_name("books");
  (*options.spec.mutable_data()->mutable_val())["code"] = "/code.jsonl";
  options.spec.mutable_data()->set_tokenizer(v1::TOKENIZER_BYTE);
  options.spec.mutable_train()->set_seq_len(256);
  options.spec.mutable_train()->set_batch_size(32);
  return options;
}

v1::WorkerRecord Boot() {
  v1::WorkerRecord record;
  record.set_unix_nanos(1'700'000'000'000'000'000);
  v1::WorkerStarted& started = *record.mutable_started();
  started.set_parameters(1234);
  started.set_device("cpu, 2 threads");
  started.set_resumed_from("checkpoints/step-8");
  started.set_resumed_step(8);
  v1::CorpusSummary& corpus = *started.mutable_corpus();
  corpus.set_documents(11);
  corpus.set_dropped_documents(2);
  corpus.set_val_documents(3);
  corpus.set_tokens(4000);
  corpus.set_val_tokens(500);
  corpus.set_rows(60);
  corpus.set_val_rows(7);
  corpus.set_null_rows(1);
  corpus.set_empty_files(9);
  return record;
}

TEST(Golden, FilesOfARankAreThoseOfToday) {
  const TempDir dir;
  const ReporterOptions options = MixedOptions(dir);
  auto files = TelemetryFiles::Open(options);
  ASSERT_OK(files);
  v1::WorkerRecord beat = FullStep(19);
  beat.set_unix_nanos(beat.unix_nanos() + 3'600'000'000'000);
  v1::WorkerRecord end;
  end.set_unix_nanos(1'700'010'000'000'000'000);
  end.mutable_finished()->set_outcome(v1::OUTCOME_COMPLETED);
  end.mutable_finished()->set_reason("COMPLETED");
  end.mutable_finished()->set_text("done");
  end.mutable_finished()->set_step(20);
  std::string text;
  for (const v1::WorkerRecord& record : {Boot(), FullStep(10), FullEval(10), beat, LostStep(20)}) {
    for (const auto& written : (*files)->Write(record)) EXPECT_OK(written.status);
    absl::StrAppend(&text, LogLine(record, 100), "\n");
  }
  ASSERT_OK((*files)->WriteMetrics(5));
  absl::StrAppend(&text, "== metrics.json of a run with a lost step\n",
                  *ReadWholeFile(dir / "out/metrics.json"));
  for (const auto& written : (*files)->Write(end)) EXPECT_OK(written.status);
  ASSERT_OK((*files)->WriteMetrics(5));
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "out")) {
    if (entry.is_regular_file() && entry.path().filename() != "env.json") {
      names.push_back(entry.path().filename());
    }
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    absl::StrAppend(&text, "== ", name, "\n", *ReadWholeFile(dir / "out" / name));
  }
  absl::StrAppend(&text, Shown("tb, step", ScalarsOf(FullStep(10).step())),
                  Shown("tb, lost step", ScalarsOf(LostStep(20).step())),
                  Shown("tb, validation", ScalarsOf(FullEval(10).eval())));
  text = absl::StrReplaceAll(text, {{absl::StrCat("\"pid\":", getpid()), "\"pid\":PID"}});
  ExpectGolden("worker/train/telemetry/files.golden", text);
}

std::vector<std::string> ColumnsOf(Csv table) {
  return absl::StrSplit(absl::StripSuffix(HeaderOf(table), "\n"), ',');
}

Csv TableOf(const record::Quantity& quantity) {
  if (quantity.of() == record::Of::kStep) return Csv::kTraining;
  if (quantity.of() == record::Of::kValidation) return Csv::kVal;
  return quantity.part == record::Part::kAudit ? Csv::kAudit : Csv::kSelection;
}

TEST(Quantities, AreInEveryFileThatTheyName) {
  using nlohmann::json;
  const auto line = [](const v1::WorkerRecord& record) {
    return json::parse(HeartbeatLine(record, true, 10, 0));
  };
  const json step = line(FullStep(10));
  const json eval = line(FullEval(10));
  Scalars scalars = ScalarsOf(FullStep(10).step());
  for (const auto& scalar : ScalarsOf(FullEval(10).eval())) scalars.push_back(scalar);
  for (const record::Quantity& quantity : record::kQuantities) {
    if (quantity.csv != nullptr) {
      EXPECT_THAT(ColumnsOf(TableOf(quantity)), testing::Contains(quantity.csv)) << quantity.name;
    }
    if (quantity.heartbeat != nullptr) {
      const bool bytes = quantity.form.kind == record::Form::kBytes;
      const json& keys = quantity.of() == record::Of::kLayer        ? step["layers"][0]
                         : quantity.of() == record::Of::kValidation ? eval
                                                                    : step;
      EXPECT_TRUE(keys.contains(absl::StrCat(quantity.heartbeat, bytes ? "_gib" : "")))
          << quantity.name;
    }
    if (quantity.tensorboard != nullptr) {
      EXPECT_THAT(scalars, testing::Contains(testing::Key(quantity.tensorboard))) << quantity.name;
    }
  }
}

}  // namespace
}  // namespace nsa::train
