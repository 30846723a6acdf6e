// Job files on disk: their names, paths and defaults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/job/load.h"
#include "google/protobuf/util/message_differencer.h"
#include "nsa/v1/config.pb.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

constexpr char kSteps[] = "train: {steps: 5}\n";

JobFile MustLoad(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path) << text;
  const auto job = LoadJobFile(path, "/base/dir");
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *job : JobFile{};
}

TEST(LoadJobFile, TakesTheNameFromTheFileWhenAbsent) {
  TempDir folder;
  EXPECT_EQ(MustLoad(folder / "a.yaml", "name: given\n").spec.name(), "given");
  EXPECT_EQ(MustLoad(folder / "m7c_125m_1xA100.yaml", kSteps).spec.name(), "m7c-125m-1xa100");
  EXPECT_EQ(MustLoad(folder / "3090_smoke.yml", kSteps).spec.name(), "job-3090-smoke");
  EXPECT_EQ(MustLoad(folder / "__x__.yaml", kSteps).spec.name(), "x");
  const std::regex valid("^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$");
  for (const char* file : {"é.yaml", "-.yaml", ".yaml", "a b.c.yaml"}) {
    EXPECT_TRUE(std::regex_match(MustLoad(folder / file, kSteps).spec.name(), valid)) << file;
  }
  const std::string longest = std::string(62, 'a') + "_" + std::string(40, 'b') + ".yaml";
  EXPECT_EQ(MustLoad(folder / longest, kSteps).spec.name(), std::string(62, 'a'));
}

TEST(LoadJobFile, PathsStartInAFolderWhoseNameIsUtf8) {
  TempDir folder;
  const std::string path = (folder / "job.yaml").string();
  std::ofstream(path) << kSteps;
  const absl::Status status = LoadJobFile(path, "/base/\xff").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("path: /base/\\xff/artifacts/job (a job's paths must be UTF-8"));
  std::ofstream(path) << "train: {steps: 5, out_dir: /out}\n";
  EXPECT_TRUE(LoadJobFile(path, "/base/\xff").ok()) << "no path of this job starts there";
}

TEST(LoadJobFile, RefusesAFileThatSetsNothing) {
  TempDir folder;
  for (const char* text :
       {"", "\n", "# train: {steps: 5}\n", "---\n", "{}\n", "name: ''\n", "train: {}\nmodel:\n"}) {
    const std::string path = (folder / "job.yaml").string();
    std::ofstream(path) << text;
    const absl::Status status = LoadJobFile(path, "/base").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << "'" << text << "'";
    EXPECT_EQ(status.message(),
              path + ": sets nothing (a job file must set at least one key); see configs/jobs/");
  }
  EXPECT_FALSE(LoadJobFile("/dev/null", "/base").ok());
  // A daemon's configuration may be empty: every key has a default.
  v1::CoordinatorConfig config;
  EXPECT_TRUE(LoadYamlFile("/dev/null", &config).ok());
}

TEST(LoadJobFile, AnOldKeyBesideItsNewOneIsSaidToBeIgnored) {
  TempDir folder;
  const auto why = [&](std::string_view text) {
    const JobFile job = MustLoad(folder / "job.yaml", text);
    for (const LegacyKey& key : job.source.legacy) {
      if (key.field == "train.max_grad_norm") return key.why;
    }
    return std::string();
  };
  EXPECT_THAT(why("train: {max_grad_norm: 0.5}\n"), HasSubstr("is read as train.grad_clip"));
  EXPECT_EQ(why("train: {max_grad_norm: 0.5, grad_clip: 2}\n"),
            "is ignored, because grad_clip is set, too");
  EXPECT_EQ(MustLoad(folder / "job.yaml", "train: {grad_clip: 2, max_grad_norm: 0.5}\n")
                .spec.train()
                .grad_clip(),
            2);
}

TEST(LoadJobFile, CallsOneValueForAListOfSectionsWhatItIs) {
  TempDir folder;
  const std::string path = (folder / "config.yaml").string();
  v1::ClientConfig config;
  std::ofstream(path) << "contexts: x\n";
  EXPECT_THAT(std::string(LoadYamlFile(path, &config).status().message()),
              HasSubstr("one value (must be a list of sections)"));
  std::ofstream(path) << "contexts: {name: x}\n";
  EXPECT_THAT(std::string(LoadYamlFile(path, &config).status().message()),
              HasSubstr("must be a list of sections"));
}

TEST(LoadJobFile, RefusesAnEmptyOutDirAndSaysWhere) {
  TempDir folder;
  const std::string path = (folder / "job.yaml").string();
  std::ofstream(path) << "train:\n  steps: 5\n  out_dir: \"\"\n";
  EXPECT_EQ(LoadJobFile(path, "/base").status().message(),
            path +
                ":3:3: train.out_dir: \"\" (must be a folder); name one, or remove the key to use "
                "artifacts/NAME");
}

TEST(LoadJobFile, MakesPathsAbsoluteAndClean) {
  TempDir folder;
  const v1::JobSpec spec = MustLoad(folder / "a.yaml", R"(
data:
  path: [x.txt, ../y.txt, /z/./z.txt, "https://example.org/w.txt"]
  val_path: v.txt
train: {out_dir: out/}
restart: {resume: out/checkpoints/step-00000005}
)")
                               .spec;
  EXPECT_THAT(spec.data().path(), testing::ElementsAre("/base/dir/x.txt", "/base/y.txt", "/z/z.txt",
                                                       "https://example.org/w.txt"));
  EXPECT_THAT(spec.data().val_path(), testing::ElementsAre("/base/dir/v.txt"));
  EXPECT_EQ(spec.train().out_dir(), "/base/dir/out");
  EXPECT_EQ(spec.restart().resume(), "/base/dir/out/checkpoints/step-00000005");
}

TEST(LoadJobFile, DataOfAPreparedFolderStartsThereAndTheRestDoesNot) {
  TempDir folder;
  const std::string text =
      "data: {source: tokens, path: train.tokens, val: {a: val-a.tokens}}\n"
      "train: {out_dir: out}\n";
  EXPECT_EQ(MustLoad(folder / "job.yaml", text).spec.data().path(0), "/base/dir/train.tokens");
  std::ofstream(folder / "prepared.json") << "{}";
  const v1::JobSpec spec = MustLoad(folder / "job.yaml", text).spec;
  EXPECT_EQ(spec.data().path(0), (folder / "train.tokens").string());
  EXPECT_EQ(spec.data().val().at("a"), (folder / "val-a.tokens").string());
  EXPECT_EQ(spec.train().out_dir(), "/base/dir/out");
}

TEST(LoadJobFile, GivesTheJobAnOutDirOfItsNameAndLeavesResumeWordsAlone) {
  TempDir folder;
  const v1::JobSpec spec = MustLoad(folder / "first.yaml", "restart: {resume: never}\n").spec;
  EXPECT_EQ(spec.train().out_dir(), "/base/dir/artifacts/first");
  EXPECT_EQ(spec.restart().resume(), "never");
}

TEST(ApplyDefaults, IsIdempotentAndChangesNothingThatIsSet) {
  v1::JobSpec spec;
  spec.mutable_train()->set_grad_clip(0);
  spec.mutable_data()->set_tokenizer(v1::TOKENIZER_GPT2);
  ApplyDefaults(&spec);
  EXPECT_EQ(spec.train().grad_clip(), 0);
  EXPECT_EQ(spec.model().vocab(), 50257);
  v1::JobSpec again = spec;
  ApplyDefaults(&again);
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(spec, again));
}

TEST(ApplyDefaults, RemovesANewKeyThatIsOff) {
  v1::JobSpec spec;
  spec.mutable_model()->set_norm_eps(1e-6);
  spec.mutable_model()->set_mlp_dim(0);
  ApplyDefaults(&spec);
  EXPECT_FALSE(spec.model().has_norm_eps()) << "older workers would refuse the job";
  EXPECT_FALSE(spec.model().has_mlp_dim());
  spec.mutable_model()->set_norm_eps(1e-5);
  spec.mutable_model()->set_mlp_dim(64);
  ApplyDefaults(&spec);
  EXPECT_EQ(spec.model().norm_eps(), 1e-5);
  EXPECT_EQ(spec.model().mlp_dim(), 64);
}

TEST(ApplyDefaults, StopOnDivergenceStandsOnlyWhereItIsOff) {
  v1::JobSpec spec;
  spec.mutable_guard()->set_stop_on_divergence(true);
  ApplyDefaults(&spec);
  EXPECT_FALSE(spec.guard().has_stop_on_divergence()) << "older workers would refuse the job";
  spec.mutable_guard()->set_stop_on_divergence(false);
  ApplyDefaults(&spec);
  EXPECT_TRUE(spec.guard().has_stop_on_divergence());
}

TEST(ApplyDefaults, FillsEveryFieldThatHasOne) {
  v1::JobSpec spec;
  ApplyDefaults(&spec);
  const std::set<std::string> none = {
      "name", "labels",
      "preflight",  // specific to the job
      "sweep",      // set by nsactl submit --sweep
      "limits", "sample", "resources.provisioner", "after", "not_before", "alerts",  // none
      "nsa.layers", "data.path", "data.val_path", "data.tokenizer_path", "data.separator",
      "data.text_field", "data.mix", "data.val", "data.stream", "data.shuffle_window", "data.where",
      "data.except", "data.val_where", "data.val_except", "train.out_dir", "train.checkpoint_url",
      // Absent is the default, so that older workers take the job.
      "data.loss_on", "model.activation", "model.qk_norm", "model.norm_eps", "model.mlp_dim",
      "model.mlp", "model.tie_embeddings", "model.qkv_bias", "model.rope_scaling",
      "model.rope_layers", "model.qk_norm_weights", "train.optimizer", "train.muon_lr",
      "train.muon_betas", "train.decay_steps", "restart.init", "restart.allow_new_schedule",
      "restart.min_ranks", "resources.context_parallel", "resources.require", "guard.hash_every",
      "guard.stop_on_divergence", "runtime.shard_optimizer", "runtime.shard",
      "runtime.gradient_precision",
      "guard.min_tokens_per_second",                        // measured
      "runtime.precision", "runtime.merge_micro_batches"};  // set by ResolveDevice
  const auto check = [&](const google::protobuf::Message& message, const std::string& prefix) {
    for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
      const auto* field = message.GetDescriptor()->field(i);
      if (none.contains(prefix + field->name())) continue;
      const auto& r = *message.GetReflection();
      EXPECT_TRUE(field->is_repeated() ? r.FieldSize(message, field) > 0
                                       : r.HasField(message, field))
          << prefix << field->name();
    }
  };
  check(spec, "");
  for (int i = 0; i < spec.GetDescriptor()->field_count(); ++i) {
    const auto* field = spec.GetDescriptor()->field(i);
    if (field->message_type() == nullptr || field->is_repeated()) continue;
    if (none.contains(field->name())) continue;
    check(spec.GetReflection()->GetMessage(spec, field), field->name() + ".");
  }
}

TEST(ApplyDefaults, AreThoseOfTheReadme) {
  std::ifstream in(SourceDir() + "/docs/job_file.md");
  std::stringstream text;
  text << in.rdbuf();
  v1::JobSpec spec;
  ApplyDefaults(&spec);
  v1::JobSpec shown;
  const std::string readme = text.str();
  const size_t begin = readme.find("```yaml\n# defaults\n");
  ASSERT_NE(begin, std::string::npos);
  const size_t end = readme.find("```", begin + 3);
  const auto loaded = LoadYamlText(readme.substr(begin + 8, end - begin - 8), "README", &shown);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(spec, shown))
      << "the README should say\n"
      << ToYaml(spec);
}

TEST(ApplyDefaults, HoldsOutTextOnlyWhenThereIsTextAndNoValidationFile) {
  const auto fraction = [](v1::DataSource source, bool val_path) {
    v1::JobSpec spec;
    spec.mutable_data()->set_source(source);
    if (val_path) spec.mutable_data()->add_val_path("/v");
    ApplyDefaults(&spec);
    return spec.data().val_fraction();
  };
  EXPECT_EQ(fraction(v1::DATA_SOURCE_SYNTHETIC, false), 0);
  EXPECT_EQ(fraction(v1::DATA_SOURCE_TEXT, false), 0.01);
  EXPECT_EQ(fraction(v1::DATA_SOURCE_TEXT, true), 0);
}

TEST(ApplyDefaults, TokenFilesHaveNoTokenizerAndNoSeparatorUnlessTheJobNamesThem) {
  v1::JobSpec spec;
  ASSERT_TRUE(LoadYamlText("data: {source: tokens, path: a.bin}", "a.yaml", &spec).ok());
  ApplyDefaults(&spec);
  EXPECT_EQ(spec.data().tokenizer(), v1::TOKENIZER_UNSPECIFIED);
  EXPECT_FALSE(spec.data().has_separator());
  ASSERT_TRUE(
      LoadYamlText("data: {source: tokens, path: a.bin, separator: 50256}", "a.yaml", &spec).ok());
  EXPECT_EQ(spec.data().separator(), "50256");
  v1::JobSpec again;
  ASSERT_TRUE(LoadYamlText(ToYaml(spec), "b.yaml", &again).ok());
  EXPECT_EQ(again.data().separator(), "50256");
  // A job file of the Python system that names its tokenizer.
  ASSERT_TRUE(LoadYamlText("data: {source: tokens, path: a.bin, tokenizer: byte}\n"
                           "runtime: {use_flash: true}",
                           "a.yaml", &spec)
                  .ok());
  ApplyDefaults(&spec);
  EXPECT_EQ(spec.data().tokenizer(), v1::TOKENIZER_BYTE);
}

TEST(ResolveDevice, TakesTheGpuWhereThereIsOneAndThePrecisionThatFits) {
  const auto resolve = [](bool has_gpu, v1::Device device, v1::Precision precision) {
    v1::JobSpec spec;
    spec.mutable_runtime()->set_device(device);
    spec.mutable_runtime()->set_precision(precision);
    ResolveDevice(has_gpu, &spec);
    return std::pair(spec.runtime().device(), spec.runtime().precision());
  };
  const auto open = v1::PRECISION_UNSPECIFIED;
  EXPECT_EQ(resolve(true, v1::DEVICE_AUTO, open), std::pair(v1::DEVICE_CUDA, v1::PRECISION_BF16));
  EXPECT_EQ(resolve(false, v1::DEVICE_AUTO, open), std::pair(v1::DEVICE_CPU, v1::PRECISION_FP32));
  EXPECT_EQ(resolve(false, v1::DEVICE_CUDA, open), std::pair(v1::DEVICE_CUDA, v1::PRECISION_BF16));
  EXPECT_EQ(resolve(true, v1::DEVICE_CPU, open), std::pair(v1::DEVICE_CPU, v1::PRECISION_FP32));
  EXPECT_EQ(resolve(true, v1::DEVICE_AUTO, v1::PRECISION_FP32),
            std::pair(v1::DEVICE_CUDA, v1::PRECISION_FP32));
}

TEST(LoadJobFile, ReadsEveryLevelOfShard) {
  for (const auto& [word, shard] :
       {std::pair("none", v1::SHARD_NONE), std::pair("optimizer", v1::SHARD_OPTIMIZER),
        std::pair("gradients", v1::SHARD_GRADIENTS), std::pair("parameters", v1::SHARD_PARAMETERS),
        std::pair("auto", v1::SHARD_AUTO)}) {
    v1::JobSpec spec;
    ASSERT_TRUE(LoadYamlText(absl::StrCat("runtime: {shard: ", word, "}"), "a.yaml", &spec).ok());
    EXPECT_EQ(spec.runtime().shard(), shard);
  }
}

TEST(ResolveDevice, DividesTheStateOfMuonAmongTheGpusOfOneMachine) {
  struct Case {
    bool has_gpu, muon, want;
    int gpus, nodes, context;
  };
  for (const Case& c : {Case{true, true, true, 2, 1, 1}, Case{true, true, true, 8, 1, 1},
                        Case{true, true, false, 1, 1, 1}, Case{true, true, false, 2, 2, 1},
                        Case{true, true, false, 2, 1, 2}, Case{true, false, false, 2, 1, 1},
                        Case{false, true, false, 2, 1, 1}}) {
    v1::JobSpec spec;
    if (c.muon) spec.mutable_train()->set_optimizer(v1::OPTIMIZER_MUON);
    spec.mutable_resources()->set_gpus(c.gpus);
    spec.mutable_resources()->set_nodes(c.nodes);
    spec.mutable_resources()->set_context_parallel(c.context);
    ResolveDevice(c.has_gpu, &spec);
    EXPECT_EQ(spec.runtime().shard_optimizer(), c.want) << spec.ShortDebugString();
    v1::JobSpec whole = spec;
    whole.mutable_runtime()->set_shard_optimizer(false);
    ResolveDevice(c.has_gpu, &whole);
    EXPECT_FALSE(whole.runtime().shard_optimizer()) << "the job file decides";
    v1::JobSpec named = spec;
    named.mutable_runtime()->clear_shard_optimizer();
    named.mutable_runtime()->set_shard(v1::SHARD_NONE);
    ResolveDevice(c.has_gpu, &named);
    EXPECT_FALSE(named.runtime().has_shard_optimizer()) << "so does its newer name";
  }
}

}  // namespace
}  // namespace nsa
