// Every job file of the Python system trains on the same tokens here as there, or is refused; each
// value that it gets or that counts something else is named in a warning.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "common/job/load.h"
#include "common/preflight/preflight.h"
#include "tests/common/job/python_files.h"
#include "tests/common/preflight/preflight_cases.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;
using Lines = std::vector<std::string>;

constexpr auto kBf16 = v1::PRECISION_BF16;
constexpr auto kFp32 = v1::PRECISION_FP32;

const PythonFile& FileOf(const std::string& name) {
  static const auto* files = new std::vector<PythonFile>([] {
    std::vector<PythonFile> all = PythonRuns();
    for (const PythonFile& part : PythonParts()) all.push_back(part);
    return all;
  }());
  return *std::find_if(files->begin(), files->end(),
                       [&](const PythonFile& file) { return file.name == name; });
}

Lines operator+(Lines a, const Lines& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// --- warnings that several files share, in the order in which they are given ---

const Lines kKernels = {"runtime.use_flash: has no effect",
                        "runtime.use_triton_sel: has no effect"};
const Lines kFa2 = {"runtime.fa2_enabled: has no effect", "runtime.fa2_min_len_win: has no effect",
                    "runtime.fa2_min_len_cmp: has no effect"};
const Lines kTritonLength = {"runtime.sel_triton_min_L: has no effect"};
const Lines kGate = {"nsa.gate: is not set: softmax, as in the Python system"};
const Lines kNoSource = {"data.source: is not set: synthetic; the Python system took"};
const Lines kOneRank = {"resources.gpus: is not set: 1; the Python system took"};
const Lines kNamedOne = {"resources.gpus: is not set: 1, from the file's name"};
const Lines kNamedTwo = {"resources.gpus: is not set: 2, from the file's name"};
const Lines kFloor = {
    "train.min_lr_ratio: is not set: 0, as in the Python system (the default here is 0.1)"};
const Lines kBetas = {
    "train.betas: is not set: [0.9, 0.999], as in the Python system (the default here is [0.9, "
    "0.95])"};
const Lines kDecay = {"train.weight_decay: applies to matrices only"};
const Lines kKept = {"train.keep_checkpoints: is not set: the newest 3 are kept"};

struct Case {
  const char* file;
  int64_t steps;
  int32_t batch;  // over all ranks
  int32_t accumulate;
  int32_t ranks;
  int64_t tokens_per_step;
  v1::Precision precision;
  double lr;
  double weight_decay;
  Lines warnings;  // their beginnings
};

const Case kCases[] = {
    {"m7c_125m_1xa100_prod_v1", 25000, 2, 2, 1, 8'192, kBf16, 2e-4, 0.01,
     kKernels + kFa2 + kTritonLength + kGate + kNoSource + kNamedOne +
         Lines{"train.steps: 50000 → 25000: ", "train.log_every: 20 → 10: ",
               "train.eval_every: 1000 → 500: ", "train.save_every: 5000 → 2500: "} +
         kFloor +
         Lines{"train.lr_schedule: the cosine ends at the last step; the Python system's was 2 "
               "times as long, and its last learning rate was 53.3 % of lr"} +
         kBetas + kDecay + kKept},
    {"m7c_125m_1xa100_production", 50000, 1, 1, 1, 2'048, kBf16, 2e-4, 0.01,
     kKernels + kGate + kNoSource + kNamedOne + kFloor + kBetas + kDecay + kKept},
    {"m7c_125m_2xa100_production", 25000, 4, 2, 2, 16'384, kBf16, 2e-4, 0.01,
     kKernels + kGate + kNoSource + kNamedTwo +
         Lines{"train.batch_size: 2 → 4: counts the sequences of all 2 ranks; in the Python system "
               "each rank took 2",
               "train.steps: 50000 → 25000: ", "train.log_every: 20 → 10: ",
               "train.eval_every: 1000 → 500: ", "train.save_every: 5000 → 2500: "} +
         kFloor + Lines{"train.lr_schedule: the cosine ends"} + kBetas + kDecay + kKept},
    {"m7c_125m_2xa100_production_tuned", 50000, 8, 1, 2, 16'384, kBf16, 2e-4, 0.01,
     kKernels + kGate + kNoSource + kNamedTwo + Lines{"train.batch_size: 4 → 8: "} + kFloor +
         kBetas + kDecay + kKept},
    {"m7c_125m_24g", 25000, 2, 8, 1, 65'536, kBf16, 2e-4, 0.01,
     kKernels + kGate + kNoSource + kOneRank +
         Lines{"train.steps: 200000 → 25000: ", "train.log_every: 50 → 6: ",
               "train.eval_every: 2000 → 250: ", "train.save_every: 10000 → 1250: "} +
         kFloor + Lines{"train.lr_schedule: the cosine ends"} + kBetas + kDecay + kKept},
    {"m7c_125m_40g", 50000, 4, 4, 1, 65'536, kBf16, 2e-4, 0.01,
     kKernels + kGate + kNoSource + kOneRank +
         Lines{"train.steps: 200000 → 50000: ", "train.log_every: 50 → 12: ",
               "train.eval_every: 2000 → 500: ", "train.save_every: 10000 → 2500: "} +
         kFloor + Lines{"train.lr_schedule: the cosine ends"} + kBetas + kDecay + kKept},
    {"m7c_125m_80g", 100000, 8, 2, 1, 65'536, kBf16, 2e-4, 0.01,
     kKernels + kGate + kNoSource + kOneRank +
         Lines{"train.steps: 200000 → 100000: ", "train.log_every: 50 → 25: ",
               "train.eval_every: 2000 → 1000: ", "train.save_every: 10000 → 5000: "} +
         kFloor + Lines{"train.lr_schedule: the cosine ends"} + kBetas + kDecay + kKept},
    {"m7c_125m_2k_test", 100, 4, 1, 1, 8'192, kBf16, 2e-4, 0.01,
     kKernels + kGate + kNoSource + kOneRank + kFloor + kBetas + kDecay},
    {"m7c_125m_2k_test_cpu", 20, 2, 1, 1, 1'024, kFp32, 2e-4, 0.01,
     kKernels + kGate + kNoSource + kOneRank + kFloor + kBetas + kDecay},
    {"m7c_125m_fast_log", 3125, 1, 16, 1, 16'384, kFp32, 2e-4, 0.01,
     kKernels + kGate + kNoSource + kOneRank +
         Lines{"train.steps: 50000 → 3125: ", "train.log_every: 5 → 1: ",
               "train.eval_every: 500 → 31: ", "train.save_every: 5000 → 312: "} +
         kFloor + Lines{"train.lr_schedule: the cosine ends"} + kBetas + kDecay + kKept},
    {"m7c_small_smoke", 200, 1, 1, 1, 1'024, kBf16, 2e-4, 0.01,
     kKernels + kGate + kNoSource + kOneRank + kFloor + kBetas + kDecay},
    {"train_showcase", 200, 8, 1, 1, 1'024, kFp32, 3e-4, 0,
     kKernels + Lines{"model.n_layers: is not set: 1, as in the Python system"} + kGate +
         kNoSource + kOneRank + kFloor + kBetas + Lines{"train.weight_decay: is not set: 0"}},
};

JobFile MustLoad(const PythonFile& file, const std::string& more = "") {
  TempDir folder;
  const auto job = LoadJobFile(file.WriteTo(folder.path(), more), "/work-dir");
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *job : JobFile{};
}

std::string PythonFileError(const PythonFile& file) {
  TempDir folder;
  return std::string(LoadJobFile(file.WriteTo(folder.path()), "/").status().message());
}

Lines Warnings(const JobFile& job) {
  Lines lines;
  for (const LegacyKey& key : job.source.legacy) {
    EXPECT_GT(key.place.line, 0) << key.field;
    lines.push_back(key.field + ": " + key.why);
  }
  return lines;
}

int64_t TokensPerStep(const v1::TrainSpec& train) {
  return int64_t{train.batch_size()} * train.accumulate_grad_batches() * train.seq_len();
}

class PythonFileTest : public testing::TestWithParam<Case> {};

TEST_P(PythonFileTest, TrainsOnTheSameTokensAsThere) {
  const PythonFile& file = FileOf(GetParam().file);
  v1::JobSpec spec = MustLoad(file).spec;
  ApplyDefaults(&spec);
  EXPECT_EQ(TokensPerStep(spec.train()), file.TokensPerStep(spec.resources().gpus()));
  EXPECT_EQ(spec.train().steps(), file.Steps());
}

TEST_P(PythonFileTest, TrainsOnTheSameTokensAsThereUnderTorchrunWithTwoProcesses) {
  const PythonFile& file = FileOf(GetParam().file);
  v1::JobSpec spec = MustLoad(file, "resources: {gpus: 2}\n").spec;
  ApplyDefaults(&spec);
  EXPECT_EQ(spec.resources().gpus(), 2);
  EXPECT_EQ(TokensPerStep(spec.train()), file.TokensPerStep(2));
}

TEST_P(PythonFileTest, HasTheseValues) {
  const Case& want = GetParam();
  v1::JobSpec spec = MustLoad(FileOf(want.file)).spec;
  ApplyDefaults(&spec);
  const v1::TrainSpec& train = spec.train();
  EXPECT_EQ(train.steps(), want.steps);
  EXPECT_EQ(train.batch_size(), want.batch);
  EXPECT_EQ(train.accumulate_grad_batches(), want.accumulate);
  EXPECT_EQ(spec.resources().gpus(), want.ranks);
  EXPECT_EQ(TokensPerStep(train), want.tokens_per_step);
  EXPECT_EQ(spec.nsa().phi(), v1::PHI_AVG);
  EXPECT_EQ(spec.nsa().gate(), v1::GATE_SOFTMAX);
  EXPECT_EQ(spec.runtime().precision(), want.precision);
  EXPECT_EQ(train.lr(), want.lr);
  EXPECT_EQ(train.lr_schedule(), v1::LR_SCHEDULE_COSINE);
  EXPECT_EQ(train.min_lr_ratio(), 0);
  EXPECT_THAT(train.betas(), testing::ElementsAre(0.9, 0.999));
  EXPECT_EQ(train.weight_decay(), want.weight_decay);
  EXPECT_EQ(train.grad_clip(), 1);
}

TEST_P(PythonFileTest, SaysSoForEveryValueThatChangesOrIsAssumed) {
  const Lines warnings = Warnings(MustLoad(FileOf(GetParam().file)));
  std::vector<testing::Matcher<std::string>> want;
  for (const std::string& line : GetParam().warnings) want.push_back(testing::StartsWith(line));
  EXPECT_THAT(warnings, testing::ElementsAreArray(want));
}

INSTANTIATE_TEST_SUITE_P(Runs, PythonFileTest, testing::ValuesIn(kCases),
                         [](const auto& one) { return std::string(one.param.file); });

TEST(PythonFiles, HaveACaseHereOrAreRefused) {
  size_t loaded = 0;
  for (const PythonFile& file : PythonRuns()) {
    TempDir folder;
    if (LoadJobFile(file.WriteTo(folder.path()), "/").ok()) ++loaded;
  }
  EXPECT_EQ(loaded, std::size(kCases));
  EXPECT_EQ(PythonRuns().size() + PythonParts().size(), 16u);
}

TEST(PythonFiles, InFp16IsRefusedWithWhatToWriteInstead) {
  EXPECT_THAT(PythonFileError(FileOf("m7c_3090_smoke")),
              testing::AllOf(HasSubstr("runtime.precision: 'fp16'"), HasSubstr("write bf16")));
}

TEST(PythonFiles, InFp16BecomesTheSameRunInBf16) {
  PythonFile file = FileOf("m7c_3090_smoke");
  file.text.replace(file.text.find("fp16"), 4, "bf16");
  const v1::JobSpec spec = MustLoad(file).spec;
  EXPECT_EQ(TokensPerStep(spec.train()), 8 * 1024);
  EXPECT_EQ(TokensPerStep(spec.train()), file.TokensPerStep(1));
  EXPECT_EQ(spec.train().steps(), 25);
  EXPECT_EQ(spec.train().log_every(), 2);
}

TEST(PythonFiles, ThatOnlyChooseKernelsAreRefused) {
  for (const char* name : {"profiles_a100", "profiles_sm89"}) {
    EXPECT_THAT(PythonFileError(FileOf(name)), HasSubstr("sets nothing"));
  }
}

TEST(PythonFiles, WithTheWidthsOfThePaperAreAcceptedAndOtherWideKeysRefused) {
  v1::JobSpec spec = MustLoad(FileOf("base")).spec;
  ASSERT_EQ(spec.model().d_k(), 192);
  ASSERT_EQ(spec.model().d_v(), 128);
  const v1::PreflightReport accepted = Preflight(spec, {});
  EXPECT_TRUE(accepted.accepted()) << FormatReport(accepted, "base.yaml");
  spec.mutable_model()->set_d_k(160);
  const v1::PreflightReport refused = Preflight(spec, {});
  EXPECT_FALSE(refused.accepted());
  const v1::Finding* finding = FindingOf(refused, "SHAPE_INVALID");
  ASSERT_NE(finding, nullptr) << FormatReport(refused, "base.yaml");
  EXPECT_EQ(finding->field(), "model.d_k");
  EXPECT_THAT(finding->problem(), HasSubstr("160"));
}

TEST(PythonFiles, WithoutAKeyThatTheTrainerRequiredSaySo) {
  const Lines warnings = Warnings(MustLoad(FileOf("base")));
  for (const char* field : {"train.steps", "train.seq_len", "train.batch_size"}) {
    EXPECT_THAT(warnings,
                testing::Contains(testing::StartsWith(std::string(field) + ": is not set: the "
                                                                           "default here")));
  }
  EXPECT_THAT(warnings, testing::Contains(testing::StartsWith("train.max_grad_norm: is read as")));
}

// --- single rules ---

JobFile Load(const std::string& name, const std::string& text) {
  return MustLoad(PythonFile{name, "runtime: {use_flash: true}\n" + text});
}

TEST(PythonFiles, TakeTheGpusFromNamesThatCountThem) {
  const auto gpus = [](const char* name) {
    return Load(name, "train: {steps: 5}\n").spec.resources().gpus();
  };
  EXPECT_EQ(gpus("m7c_125m_2xa100_production"), 2);
  EXPECT_EQ(gpus("8xH100"), 8);
  EXPECT_EQ(gpus("m7c_125m_80g"), 1);
  EXPECT_EQ(gpus("box2xa100"), 1) << "part of another word";
  EXPECT_EQ(gpus("m7c_0xa100"), 1);
  EXPECT_EQ(gpus("grid_2x2"), 1) << "no model of a GPU";
  EXPECT_EQ(gpus("m7c_9999xa100"), 1);
}

TEST(PythonFiles, KeepWhatTheySetThemselves) {
  const JobFile job = Load("m7c_2xa100", R"(
train: {steps: 10, batch_size: 6, min_lr_ratio: 0.2, betas: [0.8, 0.9], keep_checkpoints: 9}
resources: {gpus: 1}
data: {source: uniform}
)");
  EXPECT_EQ(job.spec.resources().gpus(), 1);
  EXPECT_EQ(job.spec.train().batch_size(), 6);
  EXPECT_EQ(job.spec.train().min_lr_ratio(), 0.2);
  EXPECT_THAT(job.spec.train().betas(), testing::ElementsAre(0.8, 0.9));
  EXPECT_THAT(Warnings(job), testing::Not(testing::Contains(HasSubstr("gpus"))));
}

TEST(PythonFiles, AreToldWhenAKeyThatWasIgnoredTakesEffect) {
  const JobFile job = Load("x", "nsa: {phi: mlp}\ntrain: {lr_schedule: linear}\n");
  EXPECT_THAT(Warnings(job), testing::IsSupersetOf(
                                 {"nsa.phi: mlp takes effect; the Python system ignored the key "
                                  "and used avg",
                                  "train.lr_schedule: takes effect; the Python system ignored the "
                                  "key and used cosine"}));
}

TEST(PythonFiles, LeaveAbsurdNumbersToPreflight) {
  const JobFile job = Load("x",
                           "train: {steps: 3, batch_size: 2000000000, accumulate_grad_batches: 7,"
                           " log_every: -5, eval_every: 0}\nresources: {gpus: 2000000000}\n");
  EXPECT_FALSE(Preflight(job.spec, {}).accepted());
  EXPECT_EQ(job.spec.train().steps(), 1);
  EXPECT_EQ(job.spec.train().log_every(), -5);
  EXPECT_EQ(job.spec.train().eval_every(), 0);
}

TEST(PythonFiles, AreKnownByTheirKeysOnly) {
  TempDir folder;
  const PythonFile ours = {"new_2xa100", "train: {steps: 100, accumulate_grad_batches: 4}\n"};
  const auto job = LoadJobFile(ours.WriteTo(folder.path()), "/");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(job->source.legacy, testing::IsEmpty());
  EXPECT_EQ(job->spec.train().steps(), 100);
  EXPECT_FALSE(job->spec.has_resources());
}

// What --set gives is a value of today: one key does not make the rest of the job an old file.
TEST(PythonFiles, AreFilesNotSingleSettings) {
  v1::JobSpec spec;
  ASSERT_TRUE(LoadYamlText("{train: {max_grad_norm: 1}}", "--set", &spec).ok());
  EXPECT_EQ(spec.train().grad_clip(), 1);
  EXPECT_FALSE(spec.has_model());
  EXPECT_FALSE(spec.train().has_weight_decay());
}

}  // namespace
}  // namespace nsa
