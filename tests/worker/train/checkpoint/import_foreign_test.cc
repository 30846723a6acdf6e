// Folders of other families become checkpoints that compute what those models compute.
#include <functional>
#include <initializer_list>

#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/export/export.h"
#include "common/export/foreign_model.h"
#include "common/job/load.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/checkpoint/foreign_folder.h"
#include "worker/train/checkpoint/checkpoint.h"
#include "worker/train/decode/decoder.h"
#include "worker/train/model/model.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::StartsWith;

using Json = nlohmann::json;

// An imported model.
struct Imported {
  v1::JobSpec spec;
  std::unique_ptr<ParameterLayout> layout;
  Arena parameters;
};

absl::StatusOr<Imported> Load(const fs::path& checkpoint) {
  NSA_ASSIGN_OR_RETURN(const v1::CheckpointState state, ReadCheckpointState(checkpoint));
  Imported model{state.spec(), std::make_unique<ParameterLayout>(state.spec()), {}};
  ApplyDefaults(&model.spec);
  model.parameters = Arena(model.layout.get());
  Arena moments(model.layout.get());
  NSA_RETURN_IF_ERROR(LoadCheckpoint(checkpoint, "",
                                     {.layout = model.layout.get(),
                                      .parameters = model.parameters.flat(),
                                      .first_moment = moments.flat(),
                                      .second_moment = moments.flat()})
                          .status());
  return model;
}

std::vector<int32_t> TextOf(int64_t tokens, int32_t vocab) {
  std::vector<int32_t> text;
  std::mt19937 engine(9);
  for (int64_t i = 0; i < tokens; ++i) text.push_back(static_cast<int32_t>(engine() % vocab));
  return text;
}

// The largest difference between the logits of the decoder or of the whole forward and those of
// the family's equations.
void ExpectLogitsOf(const ForeignFolder& folder, const Imported& model) {
  const int32_t vocab = model.spec.model().vocab();
  const std::vector<int32_t> text = TextOf(40, vocab);
  const std::vector<std::vector<double>> want = folder.Logits(text);
  const auto decoder = Decoder::Create(Exec{}, model.spec, &model.parameters, {.context = 40});
  ASSERT_OK(decoder);
  const auto each = (*decoder)->PrefillEach(text);
  ASSERT_OK(each);
  auto whole = Model::Create(model.spec, {.batch = 1, .seq_len = 40}, &model.parameters);
  ASSERT_OK(whole);
  std::vector<float> logits(vocab);
  double decoded = 0, forward = 0, largest = 0;
  for (int32_t t = 0; t < 40; ++t) {
    ASSERT_OK((*whole)->NextLogits({}, text, t, logits));
    for (int32_t v = 0; v < vocab; ++v) {
      decoded = std::max(decoded, std::abs((*each)[t * vocab + v] - want[t][v]));
      forward = std::max(forward, std::abs(logits[v] - want[t][v]));
      largest = std::max(largest, std::abs(want[t][v]));
    }
  }
  EXPECT_GT(largest, 1) << "logits that say something";
  EXPECT_LT(decoded, 1e-4);
  EXPECT_LT(forward, 1e-4);
}

struct Case {
  const char* name;
  const char* architecture;
  const char* type;
  std::function<void(Json*)> change;
};

class ImportForeign : public testing::TestWithParam<Case> {
 protected:
  static ForeignFolder Folder() {
    Json config = ForeignConfig(GetParam().architecture, GetParam().type);
    if (GetParam().change) GetParam().change(&config);
    return ForeignFolder(config);
  }
  const TempDir dir_;
};

TEST_P(ImportForeign, ComputesWhatTheFamilyComputes) {
  const ForeignFolder folder = Folder();
  folder.Write(dir_ / "model");
  const auto imported = ImportModel(dir_ / "model", dir_ / "checkpoint");
  ASSERT_OK(imported);
  EXPECT_FALSE(imported->widened);
  EXPECT_FALSE(imported->training_state);
  EXPECT_THAT(VerifyCheckpoint(dir_ / "checkpoint"), testing::IsEmpty());
  const auto model = Load(dir_ / "checkpoint");
  ASSERT_OK(model);
  EXPECT_EQ(model->layout->count(), imported->parameters);
  ExpectLogitsOf(folder, *model);
}

// Exported it is a model of its family again, and imported once more it has the same bits, with the
// training state or without it.
TEST_P(ImportForeign, ComesOutAsWhatItIs) {
  const ForeignFolder folder = Folder();
  folder.Write(dir_ / "model");
  ASSERT_OK(ImportModel(dir_ / "model", dir_ / "checkpoint"));
  std::ofstream(dir_ / "tokenizer.json")
      << R"({"added_tokens": [{"id": 60, "content": "</s>", "special": true}], "model": {}})";
  const auto exported = ExportModel(dir_ / "checkpoint", dir_ / "out", {.tokenizer = dir_.path()});
  ASSERT_OK(exported);
  const std::string architecture = exported->architecture;
  EXPECT_EQ(architecture, std::string(GetParam().name) == "MistralWithoutAWindow"
                              ? "LlamaForCausalLM"
                              : GetParam().architecture);
  EXPECT_FALSE(fs::exists(dir_ / "out" / "modeling_nsa.py"));
  const auto file = SafetensorsFile::Open(dir_ / "out" / "model.safetensors");
  ASSERT_OK(file);
  EXPECT_EQ((*file)->tensors().size(), folder.tensors().size());
  for (const auto& [name, tensor] : folder.tensors()) {
    std::vector<float> values(tensor.values.size());
    ASSERT_OK((*file)->Read(name, values)) << name;
    const bool scaled =
        std::string(GetParam().name).find("Yarn") != std::string::npos &&
        (name.find("q_proj") != std::string::npos || name.find("q_norm") != std::string::npos);
    if (!scaled) {
      EXPECT_EQ(values, tensor.values) << name;
    }
  }
  const auto with_state = ImportModel(dir_ / "out", dir_ / "with-state");
  ASSERT_OK(with_state);
  EXPECT_TRUE(with_state->training_state);
  fs::remove(dir_ / "out" / "checkpoint_state.json");
  ASSERT_OK(ImportModel(dir_ / "out", dir_ / "again"));
  const auto before = Load(dir_ / "checkpoint"), after = Load(dir_ / "again");
  ASSERT_OK(before);
  ASSERT_OK(after);
  EXPECT_EQ(before->spec.model().SerializeAsString(), after->spec.model().SerializeAsString());
  EXPECT_TRUE(std::ranges::equal(before->parameters.flat(), after->parameters.flat()));
}

// What none of the families has is written with code of our own.
TEST(ExportOfADenseModel, WithSomethingOfOursIsOneOfOurs) {
  for (const auto change : std::initializer_list<void (*)(v1::JobSpec*)>{
           [](v1::JobSpec* spec) { spec->mutable_model()->set_qk_norm(true); },
           [](v1::JobSpec* spec) { spec->mutable_data()->set_document_mask(true); },
           [](v1::JobSpec* spec) { spec->mutable_model()->clear_mlp(); },
           [](v1::JobSpec* spec) { spec->mutable_model()->set_d_v(32); },
           [](v1::JobSpec* spec) { spec->mutable_nsa()->add_branches(v1::BRANCH_SEL); },
       }) {
    const auto foreign = ReadForeignModel(ForeignConfig("LlamaForCausalLM", "llama"));
    ASSERT_OK(foreign);
    v1::JobSpec spec = foreign->spec;
    EXPECT_TRUE(AsPlainModel(spec, false, {}).has_value());
    change(&spec);
    EXPECT_FALSE(AsPlainModel(spec, false, {}).has_value()) << spec.DebugString();
  }
}

TEST(ExportOfADenseModel, MayBeInBf16AndInSeveralFiles) {
  const TempDir dir;
  const ForeignFolder folder(ForeignConfig("Qwen3ForCausalLM", "qwen3"));
  folder.Write(dir / "model");
  ASSERT_OK(ImportModel(dir / "model", dir / "checkpoint"));
  std::ofstream(dir / "tokenizer.json")
      << R"({"added_tokens": [{"id": 60, "content": "</s>", "special": true}], "model": {}})";
  ASSERT_OK(
      ExportModel(dir / "checkpoint", dir / "out",
                  {.type = TensorType::kBf16, .tokenizer = dir.path(), .largest_file = 4000}));
  EXPECT_TRUE(fs::exists(dir / "out" / "model.safetensors.index.json"));
  ASSERT_OK(ImportModel(dir / "out", dir / "again"));
  const auto model = Load(dir / "again");
  ASSERT_OK(model);
  ExpectLogitsOf(folder, *model);
}

INSTANTIATE_TEST_SUITE_P(
    Families, ImportForeign,
    testing::Values(Case{"Llama", "LlamaForCausalLM", "llama", nullptr},
                    Case{"LlamaTied", "LlamaForCausalLM", "llama",
                         [](Json* config) { (*config)["tie_word_embeddings"] = true; }},
                    Case{"LlamaWithAKeyForEveryHead", "LlamaForCausalLM", "llama",
                         [](Json* config) { (*config)["num_key_value_heads"] = 4; }},
                    Case{"LlamaWithLinearScaling", "LlamaForCausalLM", "llama",
                         [](Json* config) {
                           (*config)["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
                         }},
                    Case{"Llama3", "LlamaForCausalLM", "llama",
                         [](Json* config) {
                           (*config)["rope_theta"] = 500000.0;
                           (*config)["rope_scaling"] = {{"rope_type", "llama3"},
                                                        {"factor", 8.0},
                                                        {"low_freq_factor", 1.0},
                                                        {"high_freq_factor", 4.0},
                                                        {"original_max_position_embeddings", 64}};
                         }},
                    Case{"Qwen2", "Qwen2ForCausalLM", "qwen2",
                         [](Json* config) { (*config)["hidden_size"] = 64; }},
                    Case{"Qwen2TiedWithYarn", "Qwen2ForCausalLM", "qwen2",
                         [](Json* config) {
                           (*config)["hidden_size"] = 64;
                           (*config)["tie_word_embeddings"] = true;
                           (*config)["rope_scaling"] = {{"rope_type", "yarn"},
                                                        {"factor", 4.0},
                                                        {"original_max_position_embeddings", 1000}};
                         }},
                    Case{"Qwen3", "Qwen3ForCausalLM", "qwen3",
                         [](Json* config) { (*config)["rms_norm_eps"] = 1e-3; }},
                    Case{"Qwen3WithYarnAndNewKeys", "Qwen3ForCausalLM", "qwen3",
                         [](Json* config) {
                           config->erase("rope_theta");
                           (*config)["rope_parameters"] = {
                               {"rope_type", "yarn"},
                               {"rope_theta", 1e6},
                               {"factor", 2.0},
                               {"attention_factor", 1.3},
                               {"original_max_position_embeddings", 2000}};
                         }},
                    Case{"Qwen3WithAWindow", "Qwen3ForCausalLM", "qwen3",
                         [](Json* config) {
                           (*config)["use_sliding_window"] = true;
                           (*config)["sliding_window"] = 9;
                           (*config)["max_window_layers"] = 0;
                         }},
                    Case{"Mistral", "MistralForCausalLM", "mistral",
                         [](Json* config) { (*config)["sliding_window"] = 7; }},
                    Case{"MistralWithoutAWindow", "MistralForCausalLM", "mistral",
                         [](Json* config) { (*config)["sliding_window"] = nullptr; }}),
    [](const auto& instance) { return std::string(instance.param.name); });

// A Llama whose head width is not dim / heads, as our tests of the families have it, and without
// head_dim.
TEST(ImportForeignFolder, FindsTheHeadWidthOfAConfigWithoutOne) {
  const TempDir dir;
  Json config = ForeignConfig("LlamaForCausalLM", "llama");
  config["hidden_size"] = 64;
  const ForeignFolder folder(config);
  config.erase("head_dim");
  ForeignFolder without = folder;
  without.config() = config;
  without.Write(dir / "model");
  ASSERT_OK(ImportModel(dir / "model", dir / "checkpoint"));
  const auto model = Load(dir / "checkpoint");
  ASSERT_OK(model);
  EXPECT_EQ(model->spec.model().d_k(), 16);
  ExpectLogitsOf(folder, *model);
}

TEST(ImportForeignFolder, ReadsShardsAndNarrowTypes) {
  const TempDir dir;
  const ForeignFolder folder(ForeignConfig("Qwen2ForCausalLM", "qwen2"));
  for (const TensorType type : {TensorType::kBf16, TensorType::kF16}) {
    const std::string name = type == TensorType::kBf16 ? "bf16" : "fp16";
    folder.Write(dir / name, type, /*shards=*/3);
    const auto imported = ImportModel(dir / name, dir / (name + "-checkpoint"));
    ASSERT_OK(imported);
    EXPECT_TRUE(imported->widened);
    const auto model = Load(dir / (name + "-checkpoint"));
    ASSERT_OK(model);
    ExpectLogitsOf(folder, *model);
  }
}

// Older folders have frequencies, and some a head although the embedding is it.
TEST(ImportForeignFolder, LeavesOutWhatFollowsFromOtherThings) {
  const TempDir dir;
  Json config = ForeignConfig("LlamaForCausalLM", "llama");
  ForeignFolder folder(config);
  folder.tensors()["model.layers.0.self_attn.rotary_emb.inv_freq"] = {{8}, std::vector<float>(8)};
  folder.Write(dir / "model");
  ASSERT_OK(ImportModel(dir / "model", dir / "checkpoint"));
  folder.config()["tie_word_embeddings"] = true;
  folder.Write(dir / "tied");
  ASSERT_OK(ImportModel(dir / "tied", dir / "tied-checkpoint"));
  EXPECT_TRUE(ReadCheckpointState(dir / "tied-checkpoint")->spec().model().tie_embeddings());
}

TEST(ImportForeignFolder, TheJobIsDenseAndTakesTheTokenizerOfTheFolder) {
  const TempDir dir;
  const ForeignFolder folder(ForeignConfig("LlamaForCausalLM", "llama"));
  folder.Write(dir / "model");
  const auto tokenizer = [&](int last) {
    std::ofstream(dir / "model" / "tokenizer.json")
        << Json{{"model", {{"vocab", {{"a", 0}, {"</s>", last}}}}},
                {"added_tokens", {{{"id", last}, {"content", "</s>"}, {"special", true}}}}};
  };
  tokenizer(60);
  ASSERT_OK(ImportModel(dir / "model", dir / "checkpoint"));
  const auto state = ReadCheckpointState(dir / "checkpoint");
  ASSERT_OK(state);
  EXPECT_EQ(state->step(), 0);
  EXPECT_EQ(state->spec().data().tokenizer(), v1::TOKENIZER_BPE);
  EXPECT_EQ(state->spec().data().tokenizer_path(), (dir / "checkpoint").string());
  EXPECT_TRUE(std::filesystem::exists(dir / "checkpoint" / "tokenizer.json"));
  ASSERT_EQ(state->spec().nsa().branches_size(), 1);
  EXPECT_EQ(state->spec().nsa().branches(0), v1::BRANCH_WIN);
  EXPECT_EQ(state->spec().nsa().w(), state->spec().train().seq_len());
  tokenizer(61);
  EXPECT_THAT(ImportModel(dir / "model", dir / "other"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("62 tokens (vocab_size of config.json is 61)")));
}

struct Refusal {
  const char* key;
  Json value;
  const char* reason;
};

TEST(ImportForeignFolder, RefusesWhatItCannotBeByTheNameOfTheKey) {
  const Json types = {"full_attention", "sliding_attention"};
  const std::vector<Refusal> refusals = {
      {"architectures",
       {"GemmaForCausalLM"},
       "architectures: [\"GemmaForCausalLM\"] (one of Llama"},
      {"hidden_act", "gelu", "hidden_act: \"gelu\" (silu)"},
      {"attention_bias", true, "attention_bias: true (false"},
      {"mlp_bias", true, "mlp_bias: true"},
      {"head_dim", 80, "head_dim: 80 (16, 32, 64 or 128"},
      {"head_dim", "x", "head_dim: \"x\""},
      {"num_key_value_heads", 3, "num_key_value_heads: 3 (divides"},
      {"intermediate_size", 81, "intermediate_size: 81 (a multiple of 16)"},
      {"hidden_size", 1 << 30, "hidden_size: 1073741824 (from 1 to 32768)"},
      {"vocab_size", -1, "vocab_size: -1"},
      {"rms_norm_eps", 0, "rms_norm_eps: 0 (1e-12 to 0.01"},
      {"rope_theta", 1, "rope_theta: 1 (above 1)"},
      {"partial_rotary_factor", 0.5, "partial_rotary_factor: 0.5"},
      {"quantization_config", {{"bits", 4}}, "quantization_config"},
      {"tie_word_embeddings", 1, "tie_word_embeddings: 1 (true or false)"},
      {"max_position_embeddings", 1 << 21, "max_position_embeddings"},
      {"rope_scaling", {{"rope_type", "longrope"}, {"factor", 4}}, "rope_type: \"longrope\""},
      {"rope_scaling", {{"type", "dynamic"}, {"factor", 4}}, "type: \"dynamic\" (default, linear"},
      {"rope_scaling",
       {{"rope_type", "llama3"}, {"factor", 4}},
       "original_max_position_embeddings"},
      {"rope_scaling", {{"rope_type", "linear"}}, "factor: missing"},
      {"rope_scaling", 4, "rope_scaling: 4 (an object, or null)"},
  };
  for (const Refusal& refusal : refusals) {
    const TempDir dir;
    ForeignFolder folder(ForeignConfig("LlamaForCausalLM", "llama"));
    folder.config()[refusal.key] = refusal.value;
    folder.Write(dir / "model");
    EXPECT_THAT(ImportModel(dir / "model", dir / "checkpoint"),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(refusal.reason)))
        << refusal.key;
    EXPECT_FALSE(fs::exists(dir / "checkpoint")) << refusal.key;
  }
  const TempDir dir;
  ForeignFolder folder(ForeignConfig("Qwen3ForCausalLM", "qwen3"));
  folder.config()["sliding_window"] = 9;
  folder.config()["layer_types"] = types;
  folder.Write(dir / "model");
  EXPECT_THAT(ImportModel(dir / "model", dir / "checkpoint"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("sliding_window: 9 (that of all layers, but only 1 of 2")));
}

TEST(ImportForeignFolder, RefusesDamagedFoldersAndLeavesNothingBehind) {
  struct Damage {
    const char* what;
    std::function<void(ForeignFolder*, const fs::path&)> make;
    const char* reason;
  };
  const auto write = [](ForeignFolder* folder, const fs::path& path) {
    folder->Write(path, TensorType::kF32, /*shards=*/2);
  };
  const std::string shard = "model-00002-of-00002.safetensors";
  const std::vector<Damage> damages = {
      {"a missing shard",
       [&](auto* folder, const auto& path) {
         write(folder, path);
         fs::remove(path / shard);
       },
       "model-00002-of-00002.safetensors"},
      {"a shard that is cut off",
       [&](auto* folder, const auto& path) {
         write(folder, path);
         fs::resize_file(path / shard, fs::file_size(path / shard) - 4);
       },
       "a tensor runs past its end"},
      {"another shape",
       [&](auto* folder, const auto& path) {
         folder->tensors()["model.norm.weight"].shape = {4, 8};
         write(folder, path);
       },
       "tensor model.norm.weight is [4, 8] (config.json describes [32])"},
      {"a missing tensor",
       [&](auto* folder, const auto& path) {
         folder->tensors().erase("model.layers.1.mlp.up_proj.weight");
         write(folder, path);
       },
       "tensor model.layers.1.mlp.up_proj.weight is [absent]"},
      {"a tensor too many",
       [&](auto* folder, const auto& path) {
         folder->tensors()["model.layers.0.self_attn.o_proj.bias"] = {{32}, std::vector<float>(32)};
         write(folder, path);
       },
       "tensor model.layers.0.self_attn.o_proj.bias (not in the model"},
      {"a config that is no object",
       [&](auto* folder, const auto& path) {
         write(folder, path);
         std::ofstream(path / "config.json") << "[]";
       },
       "not a JSON object"},
  };
  for (const Damage& damage : damages) {
    const TempDir dir;
    ForeignFolder folder(ForeignConfig("LlamaForCausalLM", "llama"));
    damage.make(&folder, dir / "model");
    const auto imported = ImportModel(dir / "model", dir / "checkpoint");
    ASSERT_FALSE(imported.ok()) << damage.what;
    EXPECT_THAT(std::string(imported.status().message()), HasSubstr(damage.reason));
    for (const auto& entry : fs::directory_iterator(dir.path())) {
      EXPECT_EQ(entry.path().filename(), "model") << damage.what;
    }
  }
}

}  // namespace
}  // namespace nsa::train
