// Every file in configs/ loads, with the preflight findings that are listed here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "common/estimate/estimate.h"
#include "common/preflight/preflight.h"
#include "nsa/v1/config.pb.h"
#include "tests/common/job/python_files.h"
#include "tests/common/preflight/preflight_cases.h"
#include "tests/testing/paths.h"

namespace nsa {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAreArray;

const fs::path kTree = SourceDir();

struct Verdict {
  const char* file;
  int64_t parameters;
  bool accepted;
  v1::PreflightPolicy policy;
  std::vector<std::string> rules;  // errors and warnings, in order
};

constexpr auto kProduction = v1::PREFLIGHT_POLICY_PRODUCTION;
constexpr auto kExperiment = v1::PREFLIGHT_POLICY_EXPERIMENT;
constexpr int64_t kM7c = 78'295'332;
constexpr int64_t kM7cGpt2 = 155'096'868;

const Verdict kVerdicts[] = {
    {"demo.yaml", 565'254, true, kExperiment, {}},
    {"demo_gpu.yaml", 26'603'032, true, kExperiment, {}},
    {"legacy/m7c_125m_1xa100_prod_v1.yaml", kM7c, true, kProduction, {}},
    {"legacy/m7c_125m_1xa100_production.yaml", kM7c, true, kProduction, {}},
    {"legacy/m7c_125m_24g.yaml", kM7cGpt2, true, kProduction, {}},
    {"legacy/m7c_125m_2k_test.yaml", kM7c, true, kExperiment, {}},
    {"legacy/m7c_125m_2k_test_cpu.yaml", kM7c, true, kExperiment, {}},
    {"legacy/m7c_125m_2xa100_production.yaml", kM7c, true, kProduction, {}},
    {"legacy/m7c_125m_2xa100_production_tuned.yaml", kM7c, true, kProduction, {}},
    {"legacy/m7c_125m_40g.yaml", kM7cGpt2, true, kProduction, {}},
    {"legacy/m7c_125m_80g.yaml", kM7cGpt2, true, kProduction, {}},
    {"legacy/m7c_125m_fast_log.yaml", kM7cGpt2, true, kExperiment, {}},
    {"legacy/m7c_3090_smoke.yaml", 4'659'858, true, kExperiment, {}},
    {"legacy/m7c_small_smoke.yaml", 4'659'858, true, kExperiment, {}},
    {"nsa_1b.yaml", 1'213'302'784, true, kProduction, {}},
    {"nsa_3b.yaml", 3'015'355'392, true, kProduction, {}},
    {"nsa_7b.yaml", 7'241'732'096, true, kProduction, {}},
    {"openstax_cpu.yaml", 461'894, true, kExperiment, {}},
    {"openstax_best.yaml", 73'550'592, true, kExperiment, {}},
    {"openstax_gpu.yaml", 77'571'090, true, kExperiment, {}},
    {"paper_shape.yaml", 1'241'390'628, true, kExperiment, {}},
    {"train_50k.yaml", 77'571'090, true, kProduction, {}},
    {"train_showcase.yaml", 254'499, true, kExperiment, {}},
};

std::vector<std::string> ErrorsAndWarnings(const v1::PreflightReport& report) {
  std::vector<std::string> rules;
  for (const v1::Finding& finding : report.findings()) {
    if (finding.severity() >= v1::SEVERITY_WARNING) rules.push_back(finding.rule());
  }
  return rules;
}

class Configs : public testing::TestWithParam<Verdict> {};

TEST_P(Configs, LoadAndAreJudgedAsWrittenHere) {
  const Verdict& want = GetParam();
  const absl::StatusOr<JobFile> job = LoadJobFile(kTree / "configs" / "jobs" / want.file, kTree);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(job->source.legacy, testing::IsEmpty()) << "our files have no old keys";
  const v1::PreflightReport report = Preflight(job->spec, {});
  EXPECT_EQ(report.accepted(), want.accepted) << FormatReport(report, want.file);
  EXPECT_EQ(report.policy(), want.policy);
  EXPECT_THAT(ErrorsAndWarnings(report), ElementsAreArray(want.rules))
      << FormatReport(report, want.file);
  EXPECT_EQ(ParameterCount(report.spec()), want.parameters);
}

INSTANTIATE_TEST_SUITE_P(Jobs, Configs, testing::ValuesIn(kVerdicts),
                         [](const auto& one) { return fs::path(one.param.file).stem().string(); });

TEST(ConfigFiles, HaveAVerdictHereEach) {
  std::set<std::string> files;
  const fs::path jobs = kTree / "configs" / "jobs";
  for (const auto& entry : fs::recursive_directory_iterator(jobs)) {
    if (entry.is_regular_file()) files.insert(entry.path().lexically_relative(jobs).string());
  }
  std::set<std::string> judged;
  for (const Verdict& verdict : kVerdicts) judged.insert(verdict.file);
  EXPECT_EQ(files, judged);
}

TEST(ConfigFiles, EachBeginWithWhatTheyAreForAndHaveTheirFilesName) {
  for (const Verdict& verdict : kVerdicts) {
    std::ifstream in(kTree / "configs" / "jobs" / verdict.file);
    std::string first;
    std::getline(in, first);
    EXPECT_TRUE(first.starts_with("# ")) << verdict.file;
    const auto job = LoadJobFile(kTree / "configs" / "jobs" / verdict.file, kTree);
    ASSERT_TRUE(job.ok());
    std::string name = fs::path(verdict.file).stem();
    std::replace(name.begin(), name.end(), '_', '-');
    EXPECT_EQ(job->spec.name(), name);
  }
}

struct OnGpus {
  const char* file;
  const char* gpu;
  int count;
};

const OnGpus kOnGpus[] = {
    {"train_50k.yaml", "NVIDIA H200", 1},
    {"legacy/m7c_125m_1xa100_prod_v1.yaml", "NVIDIA A100-SXM4-80GB", 1},
    {"legacy/m7c_125m_1xa100_production.yaml", "NVIDIA A100-SXM4-80GB", 1},
    {"legacy/m7c_125m_2xa100_production.yaml", "NVIDIA A100-SXM4-80GB", 2},
    {"legacy/m7c_125m_2xa100_production_tuned.yaml", "NVIDIA A100-SXM4-80GB", 2},
    {"legacy/m7c_125m_24g.yaml", "NVIDIA GeForce RTX 3090", 2},
    {"legacy/m7c_125m_40g.yaml", "NVIDIA A100-SXM4-40GB", 2},
    {"legacy/m7c_125m_80g.yaml", "NVIDIA A100-SXM4-80GB", 2},
    {"nsa_1b.yaml", "NVIDIA A100-SXM4-40GB", 2},
    {"nsa_3b.yaml", "NVIDIA A100-SXM4-80GB", 2},
    {"nsa_7b.yaml", "NVIDIA A100-SXM4-80GB", 2},
};

// What CUDA can give of a GPU's memory, by its name; 24 GiB are enough for the others.
int64_t MemoryOf(const std::string& gpu) {
  const int64_t gib = gpu.ends_with("-80GB") ? 79 : gpu.ends_with("-40GB") ? 39 : 24;
  return gib << 30;
}

TEST(ConfigFiles, OfLongRunsSuitTheSpeedOfTheirGpus) {
  for (const OnGpus& want : kOnGpus) {
    const absl::StatusOr<JobFile> job = LoadJobFile(kTree / "configs" / "jobs" / want.file, kTree);
    ASSERT_TRUE(job.ok()) << job.status();
    MachineView machine = {.cuda_worker = true};
    const int64_t memory = MemoryOf(want.gpu);
    machine.gpus.assign(want.count, {want.gpu, memory, memory, 80});
    const v1::PreflightReport report = Preflight(job->spec, {.machine = &machine});
    EXPECT_TRUE(report.accepted()) << FormatReport(report, want.file);
    EXPECT_THAT(ErrorsAndWarnings(report), testing::IsEmpty()) << FormatReport(report, want.file);
  }
}

// Preflight on a machine with two cores and 4 GiB, with a check of the data files.
v1::PreflightReport PreflightOnASmallMachine(const v1::JobSpec& spec) {
  MachineView machine;
  machine.cpu_slots = 2;
  machine.cores = 2;
  machine.memory_bytes = int64_t{4} << 30;
  PreflightContext context;
  context.machine = &machine;
  context.check_files = true;
  return Preflight(spec, context);
}

// The command in deploy/compose.yaml runs in the container's home folder, where there is no source
// tree.
TEST(ConfigFiles, TheJobOfTheContainersNeedsNoFilesOfThisTree) {
  std::ifstream in(kTree / "deploy" / "compose.yaml");
  std::stringstream compose;
  compose << in.rdbuf();
  const std::string text = compose.str();
  std::smatch file;
  ASSERT_TRUE(std::regex_search(text, file, std::regex("nsactl submit /jobs/([a-z0-9_.]+)")));
  ASSERT_NE(text.find("../configs/jobs:/jobs"), std::string::npos);
  TempDir home;
  const auto job = LoadJobFile(kTree / "configs" / "jobs" / file[1].str(), home.path());
  ASSERT_TRUE(job.ok()) << job.status();
  const v1::PreflightReport report = PreflightOnASmallMachine(job->spec);
  EXPECT_TRUE(report.accepted()) << FormatReport(report, file[1].str());
  EXPECT_TRUE(job->spec.train().out_dir().starts_with(home.path().string()));
}

void ExpectNothingToComplainOf(const v1::JobSpec& spec, const v1::PreflightReport& report) {
  EXPECT_TRUE(report.accepted()) << FormatReport(report, spec.name());
  EXPECT_THAT(ErrorsAndWarnings(report), testing::IsEmpty()) << FormatReport(report, spec.name());
  for (const std::string& path : spec.data().path()) {
    EXPECT_FALSE(fs::is_symlink(path)) << path << " would be trained on twice";
  }
}

TEST(ConfigFiles, TheDemoFindsItsTextAndEnoughOfItOnThisSystem) {
  absl::StatusOr<JobFile> job = LoadJobFile(kTree / "configs" / "jobs" / "demo.yaml", kTree);
  ASSERT_TRUE(job.ok()) << job.status();
  TempDir out;
  job->spec.mutable_train()->set_out_dir((out / "out").string());
  ExpectNothingToComplainOf(job->spec, PreflightOnASmallMachine(job->spec));
}

TEST(ConfigFiles, TheDemoForGpusFindsItsTextAndEnoughOfItOnThisSystem) {
  absl::StatusOr<JobFile> job = LoadJobFile(kTree / "configs" / "jobs" / "demo_gpu.yaml", kTree);
  ASSERT_TRUE(job.ok()) << job.status();
  TempDir out;
  job->spec.mutable_train()->set_out_dir((out / "out").string());
  PreflightContext context;
  context.check_files = true;
  ExpectNothingToComplainOf(job->spec, Preflight(job->spec, context));
}

// --- the daemons' files: they have every key, and each one is commented out ---

std::string Uncommented(const fs::path& file) {
  std::ifstream in(file);
  std::string text;
  const std::regex key("^# ( *(- )?[a-z_]+:( .*)?)$");
  for (std::string line; std::getline(in, line);) {
    std::smatch match;
    if (std::regex_match(line, match, key)) text += match[1].str() + "\n";
  }
  return text;
}

template <class Config>
void CheckDaemonFile(const std::string& name) {
  Config config;
  auto loaded = LoadYamlFile(kTree / "configs" / name, &config);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(config.ByteSizeLong(), 0u) << "as it is, the file changes nothing";
  loaded = LoadYamlText(Uncommented(kTree / "configs" / name), name, &config);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  for (int i = 0; i < Config::descriptor()->field_count(); ++i) {
    EXPECT_TRUE(loaded->places.contains(Config::descriptor()->field(i)->name()))
        << name << " does not show " << Config::descriptor()->field(i)->name();
  }
}

TEST(ConfigFiles, TheCoordinatorsShowsEveryKeyCommentedOut) {
  CheckDaemonFile<v1::CoordinatorConfig>("coordinator.yaml");
}

TEST(ConfigFiles, TheAgentsShowsEveryKeyCommentedOut) {
  CheckDaemonFile<v1::AgentConfig>("agent.yaml");
}

// --- job files of the Python system ---

// The preset that replaces a file of the Python system, and the processes that trained it there.
struct Preset {
  const char* file;  // in configs/jobs/
  const char* replaces;
  int64_t ranks;
};

const Preset kPresets[] = {
    {"legacy/m7c_125m_1xa100_prod_v1.yaml", "m7c_125m_1xa100_prod_v1", 1},
    {"legacy/m7c_125m_1xa100_production.yaml", "m7c_125m_1xa100_production", 1},
    {"legacy/m7c_125m_24g.yaml", "m7c_125m_24g", 2},
    {"legacy/m7c_125m_2k_test.yaml", "m7c_125m_2k_test", 1},
    {"legacy/m7c_125m_2k_test_cpu.yaml", "m7c_125m_2k_test_cpu", 1},
    {"legacy/m7c_125m_2xa100_production.yaml", "m7c_125m_2xa100_production", 2},
    {"legacy/m7c_125m_2xa100_production_tuned.yaml", "m7c_125m_2xa100_production_tuned", 2},
    {"legacy/m7c_125m_40g.yaml", "m7c_125m_40g", 2},
    {"legacy/m7c_125m_80g.yaml", "m7c_125m_80g", 2},
    {"legacy/m7c_125m_fast_log.yaml", "m7c_125m_fast_log", 1},
    {"legacy/m7c_small_smoke.yaml", "m7c_small_smoke", 1},
    {"legacy/m7c_3090_smoke.yaml", "m7c_3090_smoke", 1},
    {"train_showcase.yaml", "train_showcase", 1},
};

TEST(OldFiles, HavePresetsThatTrainOnTheSameTokensPerStepAndInTotal) {
  const std::vector<PythonFile> old_files = PythonRuns();
  EXPECT_EQ(old_files.size(), std::size(kPresets));
  for (const Preset& preset : kPresets) {
    const auto old = std::find_if(old_files.begin(), old_files.end(), [&](const PythonFile& file) {
      return file.name == preset.replaces;
    });
    ASSERT_NE(old, old_files.end()) << preset.replaces;
    auto job = LoadJobFile(kTree / "configs" / "jobs" / preset.file, kTree);
    ASSERT_TRUE(job.ok()) << job.status();
    ApplyDefaults(&job->spec);
    const v1::TrainSpec& train = job->spec.train();
    EXPECT_EQ(job->spec.resources().gpus(), preset.ranks) << preset.file;
    EXPECT_EQ(int64_t{train.batch_size()} * train.accumulate_grad_batches() * train.seq_len(),
              old->TokensPerStep(preset.ranks))
        << preset.file;
    EXPECT_EQ(train.steps(), old->Steps()) << preset.file;
  }
}

TEST(OldFiles, TheOneThatWasted24HoursIsRefusedNamingEveryRuleItBreaks) {
  const auto job =
      LoadJobFile(kTree / "tests/common/preflight/data/wasted_24_hours.yaml", "/work-dir");
  ASSERT_TRUE(job.ok()) << job.status();
  const v1::PreflightReport report = Preflight(job->spec, {});
  EXPECT_FALSE(report.accepted());
  EXPECT_EQ(report.policy(), kProduction);
  EXPECT_EQ(ParameterCount(report.spec()), 254'499);
  EXPECT_THAT(ErrorsAndWarnings(report),
              testing::ElementsAre("PRECISION_NOT_BF16", "NO_CHECKPOINT_CADENCE",
                                   "GRADIENT_CHECKPOINTING_OFF", "MODEL_TOO_SMALL_FOR_RUN",
                                   "DATA_SYNTHETIC", "SEQ_LEN_SHORT", "EVAL_OFF"))
      << FormatReport(report, "wasted_24_hours.yaml");
  EXPECT_THAT(FindingOf(report, "MODEL_TOO_SMALL_FOR_RUN")->problem(),
              testing::AllOf(testing::HasSubstr("254,499 parameters"),
                             testing::HasSubstr("dim 128"), testing::HasSubstr("seq_len 128")));
}

TEST(OldFiles, TheSameWithAnOpenDeviceIsRefusedWhereTheMachineIsNotKnown) {
  auto job = LoadJobFile(kTree / "tests/common/preflight/data/wasted_24_hours.yaml", "/work-dir");
  ASSERT_TRUE(job.ok());
  job->spec.mutable_runtime()->set_device(v1::DEVICE_AUTO);
  EXPECT_FALSE(Preflight(job->spec, {}).accepted());
}

TEST(OldFiles, LoadWithAWarningForEveryKeyThatMeansNothing) {
  const auto job =
      LoadJobFile(kTree / "tests/common/preflight/data/python_1xa100.yaml", "/work-dir");
  ASSERT_TRUE(job.ok()) << job.status();
  std::vector<std::string> fields;
  for (const LegacyKey& key : job->source.legacy) {
    fields.push_back(key.field);
    EXPECT_GT(key.place.line, 0) << key.field;
    EXPECT_FALSE(key.why.empty());
  }
  fields.resize(8);  // legacy_files_test.cc has the warnings about values
  EXPECT_THAT(fields, testing::ElementsAre("runtime.use_flash", "runtime.use_triton_sel",
                                           "runtime.fa2_enabled", "runtime.fa2_min_len_win",
                                           "runtime.fa2_min_len_cmp", "runtime.sel_triton_min_L",
                                           "runtime.compile_cmp_win", "train.max_grad_norm"));
  EXPECT_EQ(job->spec.train().grad_clip(), 0.5);
  EXPECT_EQ(job->spec.data().source(), v1::DATA_SOURCE_UNSPECIFIED);  // synthetic by default
}

}  // namespace
}  // namespace nsa
