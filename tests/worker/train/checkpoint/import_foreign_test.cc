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
#include "tests/worker/train/checkpoint/loaded_model.h"
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

// An imported model, with the defaults of its job.
absl::StatusOr<LoadedModel> Load(const fs::path& checkpoint) {
  NSA_ASSIGN_OR_RETURN(LoadedModel model, LoadModel(checkpoint));
  ApplyDefaults(&model.spec);
  return model;
}

// layer_types of a word: "fs" is a full layer, then one with a window.
Json LayerTypes(std::string_view word) {
  Json types = Json::array();
  for (const char c : word) types.push_back(c == 's' ? "sliding_attention" : "full_attention");
  return types;
}

std::vector<int32_t> TextOf(int64_t tokens, int32_t vocab) {
  std::vector<int32_t> text;
  std::mt19937 engine(9);
  for (int64_t i = 0; i < tokens; ++i) text.push_back(static_cast<int32_t>(engine() % vocab));
  return text;
}

// The largest difference between the logits of the decoder or of the whole forward and those of
// the family's equations.
void ExpectLogitsOf(const ForeignFolder& folder, const LoadedModel& model) {
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
  const char* exported = architecture;
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
  EXPECT_EQ(exported->architecture, GetParam().exported);
  EXPECT_FALSE(fs::exists(dir_ / "out" / "modeling_nsa.py"));
  std::ifstream card(dir_ / "out" / "README.md"), config(dir_ / "out" / "config.json");
  const std::string text(std::istreambuf_iterator<char>(card), {});
  EXPECT_EQ(text.find("`sliding_window`") != std::string::npos,
            !Json::parse(config)["sliding_window"].is_null());
  const auto file = SafetensorsFile::Open(dir_ / "out" / "model.safetensors");
  ASSERT_OK(file);
  EXPECT_EQ((*file)->tensors().size(), folder.tensors().size());
  for (const auto& [name, tensor] : folder.tensors()) {
    std::vector<float> values(tensor.values.size());
    ASSERT_OK((*file)->ReadBytes((*file)->tensors().at(name), 0,
                                 std::as_writable_bytes(std::span(values))))
        << name;
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
  EXPECT_EQ(before->spec.nsa().SerializeAsString(), after->spec.nsa().SerializeAsString());
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

// However it says that every layer reads all tokens.
TEST(ExportOfADenseModel, MayHaveFullLayers) {
  const auto foreign = ReadForeignModel(ForeignConfig("LlamaForCausalLM", "llama"));
  ASSERT_OK(foreign);
  const auto plain = AsPlainModel(foreign->spec, false, {});
  ASSERT_TRUE(plain.has_value());
  const auto with = [&](std::vector<const char*> layers, int32_t window,
                        v1::RopeLayers rotated = v1::ROPE_LAYERS_UNSPECIFIED) {
    v1::JobSpec spec = foreign->spec;
    spec.mutable_nsa()->clear_branches();
    for (const char* const layer : layers) spec.mutable_nsa()->add_layers(layer);
    spec.mutable_nsa()->set_w(window);
    spec.mutable_model()->set_rope_layers(rotated);
    return AsPlainModel(spec, false, {});
  };
  const int32_t all = foreign->spec.train().seq_len();
  for (const auto& same : {with({"full"}, 4), with({"full", "win"}, all)}) {
    ASSERT_TRUE(same.has_value());
    EXPECT_EQ(same->config, plain->config);
    EXPECT_EQ(same->sources.size(), plain->sources.size());
  }
  EXPECT_FALSE(with({"full", "win"}, all, v1::ROPE_LAYERS_WINDOW).has_value()) << "not rotated";
}

struct Hybrid {
  const char* architecture;
  const char* type;
  const char* layers;  // of LayerTypes()
  std::vector<std::string> ours;
  int32_t first;  // max_window_layers; -1: the family has no such key
  bool listed;    // layer_types stands
};

// Layers with and without a window, said by layer_types, become the shortest nsa.layers and come
// out as keys that transformers reads so.
TEST(ExportOfADenseModel, MayHaveLayersWithAndWithoutAWindow) {
  for (const Hybrid& hybrid : std::initializer_list<Hybrid>{
           {"Qwen3ForCausalLM", "qwen3", "fsfsf", {"full", "win"}, 1, true},
           {"Qwen3ForCausalLM", "qwen3", "sssfss", {"win", "win", "win", "full"}, 0, true},
           {"Qwen3ForCausalLM", "qwen3", "ffsf", {"full", "full", "win"}, 2, true},
           {"Qwen2ForCausalLM", "qwen2", "fffs", {"full", "full", "full", "win"}, 3, false},
           {"Qwen2ForCausalLM", "qwen2", "sfff", {"win", "full", "full", "full"}, 0, true},
           {"MistralForCausalLM", "mistral", "fffs", {"full", "full", "full", "win"}, -1, true},
           {"MistralForCausalLM", "mistral", "fsssfsss", {"full", "win", "win", "win"}, -1, true},
       }) {
    SCOPED_TRACE(hybrid.layers);
    Json config = ForeignConfig(hybrid.architecture, hybrid.type);
    config["hidden_size"] = 64;
    config["num_hidden_layers"] = std::string(hybrid.layers).size();
    config["sliding_window"] = 9;
    config["layer_types"] = LayerTypes(hybrid.layers);
    if (hybrid.first >= 0) config["use_sliding_window"] = true;
    const auto foreign = ReadForeignModel(config);
    ASSERT_OK(foreign);
    EXPECT_THAT(foreign->spec.nsa().layers(), testing::ElementsAreArray(hybrid.ours));
    EXPECT_EQ(foreign->spec.nsa().w(), 9);
    const auto plain = AsPlainModel(foreign->spec, false, {});
    ASSERT_TRUE(plain.has_value());
    EXPECT_EQ(plain->architecture, hybrid.architecture);
    const Json written(plain->config);
    EXPECT_EQ(written["sliding_window"], 9);
    EXPECT_EQ(written.value("layer_types", Json()), hybrid.listed ? config["layer_types"] : Json());
    EXPECT_EQ(written.value("use_sliding_window", false), hybrid.first >= 0);
    EXPECT_EQ(written.value("max_window_layers", -1), hybrid.first);
    // A rotation in the one form that every version reads beside layer_types.
    EXPECT_EQ(written.value("rope_parameters", Json()),
              hybrid.listed ? Json({{"rope_type", "default"}, {"rope_theta", 10000.0}}) : Json());
    const auto again = ReadForeignModel(written);
    ASSERT_OK(again);
    EXPECT_EQ(again->spec.nsa().SerializeAsString(), foreign->spec.nsa().SerializeAsString());
    EXPECT_OK(CheckForeignConfig(written, foreign->spec));
  }
}

// A dense model of ours with a narrow window in some layers is a Mistral, whatever its list is.
TEST(ExportOfADenseModel, OfOursMayHaveLayersWithAndWithoutAWindow) {
  const auto foreign = ReadForeignModel(ForeignConfig("LlamaForCausalLM", "llama"));
  ASSERT_OK(foreign);
  v1::JobSpec spec = foreign->spec;
  spec.mutable_model()->set_n_layers(4);
  spec.mutable_nsa()->clear_branches();
  for (const char* const layer : {"full", "win", "full", "win"}) {
    spec.mutable_nsa()->add_layers(layer);
  }
  spec.mutable_nsa()->set_w(4);
  const auto plain = AsPlainModel(spec, false, {});
  ASSERT_TRUE(plain.has_value());
  EXPECT_EQ(plain->architecture, "MistralForCausalLM");
  EXPECT_EQ(Json(plain->config)["layer_types"], LayerTypes("fsfs"));
  spec.mutable_model()->set_rope_layers(v1::ROPE_LAYERS_WINDOW);
  EXPECT_FALSE(AsPlainModel(spec, false, {}).has_value()) << "full layers are not rotated";
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
                    Case{"LlamaWithHeadsOf128", "LlamaForCausalLM", "llama",
                         [](Json* config) { (*config)["head_dim"] = 128; }},
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
                    Case{"Qwen3WithHeadsOf128AndAllOfItsTokens", "Qwen3ForCausalLM", "qwen3",
                         [](Json* config) {
                           (*config)["head_dim"] = 128;
                           (*config)["vocab_size"] = 151936;
                           (*config)["tie_word_embeddings"] = true;
                         }},
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
                         [](Json* config) { (*config)["sliding_window"] = nullptr; },
                         "LlamaForCausalLM"},
                    Case{"Qwen3WithWindowsInTwoOfThreeLayers", "Qwen3ForCausalLM", "qwen3",
                         [](Json* config) {
                           (*config)["num_hidden_layers"] = 5;
                           (*config)["use_sliding_window"] = true;
                           (*config)["sliding_window"] = 9;
                           (*config)["max_window_layers"] = 5;  // layer_types counts
                           (*config)["layer_types"] = LayerTypes("fssfs");
                           (*config)["rope_theta"] = 500.0;
                           (*config)["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
                         }},
                    Case{"Qwen2WithWindowsFromLayer1On", "Qwen2ForCausalLM", "qwen2",
                         [](Json* config) {
                           (*config)["hidden_size"] = 64;
                           (*config)["num_hidden_layers"] = 3;
                           (*config)["use_sliding_window"] = true;
                           (*config)["sliding_window"] = 9;
                           (*config)["max_window_layers"] = 1;
                         }},
                    Case{"MistralWithAWindowInOneLayer", "MistralForCausalLM", "mistral",
                         [](Json* config) {
                           (*config)["sliding_window"] = 7;
                           (*config)["layer_types"] = LayerTypes("sf");
                         }},
                    Case{"Ministral", "MinistralForCausalLM", "ministral",
                         [](Json* config) {
                           (*config)["sliding_window"] = 7;
                           (*config)["layer_types"] = LayerTypes("fs");
                         },
                         "MistralForCausalLM"}),
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
  // A file of that name in the current directory is not the model's.
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(dir / "model");
  const auto here = ImportModel(".", dir / "here");
  std::filesystem::current_path(before);
  ASSERT_OK(here);
  EXPECT_TRUE(std::filesystem::exists(dir / "here" / "tokenizer.json"));
  EXPECT_EQ(ReadCheckpointState(dir / "here")->spec().data().tokenizer_path(),
            (dir / "here").string());
  tokenizer(61);
  EXPECT_THAT(ImportModel(dir / "model", dir / "other"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("62 tokens (vocab_size of config.json is 61)")));
}

// What layers read without a window that is shorter than the sequences, or with none that counts.
TEST(ImportForeignFolder, LayersReadAllTokensWhereNoWindowIsLeft) {
  struct Windows {
    const char* architecture;
    const char* type;
    Json keys;
  };
  for (const Windows& windows : std::initializer_list<Windows>{
           {"Qwen3ForCausalLM",
            "qwen3",
            {{"use_sliding_window", true},
             {"sliding_window", 40},
             {"layer_types", LayerTypes("fs")}}},
           {"Qwen3ForCausalLM",
            "qwen3",
            {{"use_sliding_window", true},
             {"sliding_window", 9},
             {"layer_types", LayerTypes("ff")}}},
           {"Qwen3ForCausalLM", "qwen3", {{"use_sliding_window", true}, {"sliding_window", 9}}},
           {"Qwen2ForCausalLM",
            "qwen2",
            {{"use_sliding_window", true}, {"sliding_window", 9}, {"max_window_layers", 2}}},
           {"Qwen2ForCausalLM",
            "qwen2",
            {{"use_sliding_window", true}, {"sliding_window", nullptr}, {"max_window_layers", 0}}},
           {"Qwen2ForCausalLM", "qwen2", {{"sliding_window", 9}, {"max_window_layers", 0}}},
           {"MistralForCausalLM",
            "mistral",
            {{"sliding_window", 9}, {"layer_types", LayerTypes("ff")}}},
           {"LlamaForCausalLM", "llama", {{"sliding_window", 9}, {"use_sliding_window", true}}},
       }) {
    Json config = ForeignConfig(windows.architecture, windows.type);
    config.update(windows.keys);
    const auto model = ReadForeignModel(config);
    ASSERT_OK(model);
    EXPECT_THAT(model->spec.nsa().branches(), testing::ElementsAre(v1::BRANCH_WIN)) << windows.keys;
    EXPECT_THAT(model->spec.nsa().layers(), testing::IsEmpty()) << windows.keys;
    EXPECT_EQ(model->spec.nsa().w(), 40) << windows.keys;
  }
}

// As transformers reads a config.json that lacks them.
TEST(ImportForeignFolder, WindowsHaveTheDefaultsOfTheirFamilies) {
  Json config = ForeignConfig("MistralForCausalLM", "mistral");
  config["max_position_embeddings"] = 8192;
  const auto mistral = ReadForeignModel(config);
  ASSERT_OK(mistral);
  EXPECT_EQ(mistral->spec.nsa().w(), 4096);
  config = ForeignConfig("Qwen2ForCausalLM", "qwen2");
  config["max_position_embeddings"] = 8192;
  config["num_hidden_layers"] = 29;
  config["use_sliding_window"] = true;
  const auto qwen = ReadForeignModel(config);
  ASSERT_OK(qwen);
  EXPECT_EQ(qwen->spec.nsa().w(), 4096);
  ASSERT_EQ(qwen->spec.nsa().layers_size(), 29);
  EXPECT_EQ(qwen->spec.nsa().layers(27), "full");
  EXPECT_EQ(qwen->spec.nsa().layers(28), "win");
}

struct Refusal {
  const char* key;
  Json value;
  const char* reason;
};

TEST(ImportForeignFolder, RefusesWhatItCannotBeByTheNameOfTheKey) {
  const std::vector<Refusal> refusals = {
      {"architectures",
       {"GemmaForCausalLM"},
       "architectures: [\"GemmaForCausalLM\"] (must be one of Llama"},
      {"hidden_act", "gelu", "hidden_act: \"gelu\" (must be silu"},
      {"attention_bias", true, "attention_bias: true (must be false"},
      {"mlp_bias", true, "mlp_bias: true"},
      {"head_dim", 80, "head_dim: 80 (must be 16, 32, 64 or 128"},
      {"head_dim", "x", "head_dim: \"x\""},
      {"num_key_value_heads", 3, "num_key_value_heads: 3 (must be a divisor of"},
      {"intermediate_size", 81, "intermediate_size: 81 (must be a multiple of 16)"},
      {"hidden_size", 1 << 30, "hidden_size: 1073741824 (must be a whole number from 1 to 32768)"},
      {"vocab_size", -1, "vocab_size: -1"},
      {"rms_norm_eps", 0, "rms_norm_eps: 0 (must be a number from 1e-12 to 0.01"},
      {"rope_theta", 1, "rope_theta: 1 (must be a number greater than 1)"},
      {"partial_rotary_factor", 0.5, "partial_rotary_factor: 0.5"},
      {"quantization_config", {{"bits", 4}}, "quantization_config"},
      {"tie_word_embeddings", 1, "tie_word_embeddings: 1 (must be true or false)"},
      {"max_position_embeddings", 1 << 21, "max_position_embeddings"},
      {"rope_scaling", {{"rope_type", "longrope"}, {"factor", 4}}, "rope_type: \"longrope\""},
      {"rope_scaling",
       {{"type", "dynamic"}, {"factor", 4}},
       "type: \"dynamic\" (must be default, linear"},
      {"rope_scaling",
       {{"rope_type", "llama3"}, {"factor", 4}},
       "original_max_position_embeddings"},
      {"rope_scaling", {{"rope_type", "linear"}}, "factor: missing"},
      {"rope_scaling", 4, "rope_scaling: 4 (must be an object or null)"},
      {"rope_parameters",
       {{"full_attention", {{"rope_theta", 1e6}}}},
       "(must be one rotation for all layers)"},
      {"layer_types", LayerTypes("fs"),
       "(must be full_attention in each layer of a LlamaForCausalLM)"},
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
}

TEST(ImportForeignFolder, RefusesWindowsThatItCannotHaveByTheNameOfTheKey) {
  const Json chunked = {"full_attention", "chunked_attention"};
  for (const Refusal& refusal : std::initializer_list<Refusal>{
           {"layer_types", chunked,
            "layer_types: [\"full_attention\",\"chunked_attention\"] (must be a list of "
            "full_attention and sliding_attention, without \"chunked_attention\")"},
           {"layer_types", LayerTypes("fsf"),
            "(must be a list with an entry for each of the 2 layers)"},
           {"layer_types", "sliding_attention", "(must be a list with an entry for each of the 2"},
           {"sliding_window", Json({9, 4}), "sliding_window: [9,4] (must be a whole number from 1"},
           {"sliding_window", nullptr, "sliding_window: null (must be a whole number from 1"},
           {"sliding_window", 0, "sliding_window: 0 (must be a whole number from 1"},
           {"use_sliding_window", nullptr,
            "use_sliding_window: null (must be true, because layer_types has sliding_attention)"},
           {"use_sliding_window", 1, "use_sliding_window: 1 (must be true or false)"}}) {
    Json config = ForeignConfig("Qwen3ForCausalLM", "qwen3");
    config["use_sliding_window"] = true;
    config["sliding_window"] = 9;
    config["layer_types"] = LayerTypes("fs");
    config[refusal.key] = refusal.value;
    EXPECT_THAT(ReadForeignModel(config),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(refusal.reason)));
  }
  Json config = ForeignConfig("Qwen2ForCausalLM", "qwen2");
  config["use_sliding_window"] = true;
  config["max_window_layers"] = -1;
  EXPECT_THAT(ReadForeignModel(config),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("max_window_layers: -1 (must be a whole number, 0 or more)")));
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
      {"a value as deep as the stack does not hold",
       [&](auto* folder, const auto& path) {
         write(folder, path);
         std::ofstream(path / "config.json") << "{\"head_dim\":" << std::string(1'000'000, '[')
                                             << std::string(1'000'000, ']') << "}";
       },
       "not a JSON object (at most 100 levels deep)"},
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
