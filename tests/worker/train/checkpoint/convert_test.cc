// Dense models become sparse ones that begin as conversion.h says.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/export/conversion.h"
#include "common/export/export.h"
#include "common/job/load.h"
#include "gmock/gmock.h"
#include "kernels/nsa/compress/compress.h"
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
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int32_t kTokens = 64;

v1::NsaSpec NsaOf(const std::string& keys) {
  v1::JobSpec spec;
  EXPECT_OK(LoadYamlText("nsa: {" + keys + "}", "nsa.yaml", &spec));
  return spec.nsa();
}

// Every layer of a converted model reads all of the first 24 tokens of a sequence.
constexpr char kSmall[] = "l: 8, d: 4, l_sel: 8, n_sel: 3, w: 24, ";
constexpr int32_t kExact = 24;

// A dense model of ours with a checkpoint in the folder `dense`. Its weights are so large that
// attention is far from uniform.
class ConvertTest : public testing::Test {
 protected:
  void SetUp() override { Save(""); }

  void Save(const std::string& model, const std::string& nsa = "branches: [win], w: 64") {
    dense_.spec.Clear();
    ASSERT_OK(
        LoadYamlText("name: dense\nmodel: {dim: 32, n_layers: 2, n_heads: 4, n_kv_groups: 2, "
                     "d_k: 16, d_v: 16, mlp_ratio: 2" +
                         model + "}\nnsa: {l: 8, d: 4, l_sel: 8, n_sel: 3, " + nsa +
                         "}\ndata: {source: text, path: none.txt, tokenizer: byte}\n"
                         "train: {seq_len: 64, batch_size: 2}\n",
                     "dense.yaml", &dense_.spec));
    ApplyDefaults(&dense_.spec);
    dense_.layout = std::make_unique<ParameterLayout>(dense_.spec);
    dense_.parameters = Arena(dense_.layout.get());
    Initialize(7, &dense_.parameters);
    for (const ParameterInfo& tensor : dense_.layout->tensors()) {
      if (!tensor.decay) continue;
      for (float& value : dense_.parameters.of(tensor)) value *= 12;
    }
    fs::remove_all(dir_ / "out");
    CheckpointWriterOptions options;
    options.out_dir = *Folder::Make(dir_ / "out");
    auto writer = CheckpointWriter::Open(options);
    ASSERT_OK(writer);
    v1::CheckpointState state;
    state.set_step(5);
    state.set_job_hash(JobHash(dense_.spec));
    *state.mutable_spec() = dense_.spec;
    const auto flat = dense_.parameters.flat();
    ASSERT_OK((*writer)->Save({dense_.layout.get(), flat, flat, flat}, state));
    ASSERT_OK((*writer)->Drain());
  }

  // The checkpoint of `out`, converted.
  absl::StatusOr<LoadedModel> Convert(const std::string& nsa) {
    fs::remove_all(dir_ / "sparse");
    NSA_RETURN_IF_ERROR(
        ImportModel(dir_ / "out", dir_ / "sparse", {.sparse = NsaOf(nsa)}).status());
    return LoadModel(dir_ / "sparse");
  }

  // Logits [kTokens][V], by the decoder; the whole forward has the same at the last token.
  static std::vector<std::vector<float>> Logits(const LoadedModel& model) {
    const int32_t vocab =
        static_cast<int32_t>(model.Values("embed.weight").size()) / model.spec.model().dim();
    std::vector<int32_t> text;
    std::mt19937 engine(9);
    for (int32_t i = 0; i < kTokens; ++i) text.push_back(static_cast<int32_t>(engine() % vocab));
    const auto decoder =
        Decoder::Create(Exec{}, model.spec, &model.parameters, {.context = kTokens});
    EXPECT_OK(decoder);
    const auto each = (*decoder)->PrefillEach(text);
    EXPECT_OK(each);
    std::vector<std::vector<float>> logits;
    for (int32_t t = 0; t < kTokens; ++t) {
      logits.emplace_back(each->begin() + t * vocab, each->begin() + (t + 1) * vocab);
    }
    auto whole = Model::Create(model.spec, {.batch = 1, .seq_len = kTokens}, &model.parameters);
    EXPECT_OK(whole);
    std::vector<float> last(vocab);
    EXPECT_OK((*whole)->NextLogits({}, text, kTokens - 1, last));
    EXPECT_LT(Apart({last}, {logits.back()}, 0, 1), 1e-3);
    return logits;
  }

  // The largest difference at positions begin … end − 1.
  static double Apart(const std::vector<std::vector<float>>& a,
                      const std::vector<std::vector<float>>& b, int32_t begin, int32_t end) {
    double apart = 0;
    for (int32_t t = begin; t < end; ++t) {
      for (size_t v = 0; v < a[t].size(); ++v) {
        apart = std::max(apart, std::abs(double{a[t][v]} - b[t][v]));
      }
    }
    return apart;
  }

  const TempDir dir_;
  LoadedModel dense_;
};

TEST_F(ConvertTest, IsTheDenseModelWhereEveryLayerReadsAllTokens) {
  const auto want = Logits(dense_);
  for (const char* layers :
       {"layers: [win]", "layers: [sel]", "layers: [win, sel]", "layers: [sel+win]",
        "layers: [sel+win], gate: softmax", "layers: [sel, sel+win]"}) {
    SCOPED_TRACE(layers);
    const auto sparse = Convert(std::string(kSmall) + layers);
    ASSERT_OK(sparse);
    const auto got = Logits(*sparse);
    EXPECT_LT(Apart(got, want, 0, kExact), 1e-5);
    EXPECT_GT(Apart(got, want, kExact, kTokens), 1e-2) << "beyond it the model is sparse";
  }
}

// A window of all tokens and blocks that are all chosen leave nothing out. What would change the
// rotation of the new layers does not.
TEST_F(ConvertTest, IsTheDenseModelEverywhereWhereNothingIsLeftOut) {
  for (const char* model : {"", ", rope_layers: window"}) {
    Save(model);
    const auto want = Logits(dense_);
    for (const char* nsa : {"l: 8, d: 4, l_sel: 8, n_sel: 8, w: 64, layers: [win, sel]",
                            "l: 8, d: 4, l_sel: 8, n_sel: 8, w: 64, layers: [sel+win]"}) {
      const auto sparse = Convert(nsa);
      ASSERT_OK(sparse);
      EXPECT_LT(Apart(Logits(*sparse), want, 0, kTokens), 1e-5) << model << nsa;
    }
  }
}

// Beside windows that are narrow, and with a dense model that says it either way.
TEST_F(ConvertTest, ChosenLayersStayFullBesideNarrowWindows) {
  for (const char* dense : {"branches: [win], w: 64", "layers: [full], w: 8"}) {
    Save("", dense);
    const auto want = Logits(dense_);
    const auto all = Convert(std::string(kSmall) + "layers: [full]");
    ASSERT_OK(all);
    EXPECT_LT(Apart(Logits(*all), want, 0, kTokens), 1e-5) << dense;
    const auto one = Convert(std::string(kSmall) + "layers: [win, full]");
    ASSERT_OK(one);
    EXPECT_EQ(one->spec.nsa().w(), kExact);
    const auto got = Logits(*one);
    EXPECT_LT(Apart(got, want, 0, kExact), 1e-5) << dense;
    EXPECT_GT(Apart(got, want, kExact, kTokens), 1e-2) << "one layer is narrow";
  }
}

// Layers with a window keep it; full ones become sparse, or stay full.
TEST_F(ConvertTest, AModelWithWindowsInSomeLayersIsDenseInTheOthers) {
  Save("", "layers: [win, full], w: 20");
  const auto want = Logits(dense_);
  const auto open = Convert("l: 8, d: 4, l_sel: 8, n_sel: 3");
  ASSERT_OK(open);
  EXPECT_THAT(open->spec.nsa().layers(), ElementsAre("win", "sel"));
  EXPECT_EQ(open->spec.nsa().w(), 20);
  const auto got = Logits(*open);
  EXPECT_LT(Apart(got, want, 0, kExact), 1e-5) << "beyond the window, too";
  EXPECT_GT(Apart(got, want, kExact, kTokens), 1e-2) << "beyond the chosen blocks";
  const auto same = Convert("l: 8, d: 4, l_sel: 8, n_sel: 3, layers: [win, full]");
  ASSERT_OK(same);
  EXPECT_LT(Apart(Logits(*same), want, 0, kTokens), 1e-5);
  const auto narrow = Convert("l: 8, d: 4, l_sel: 8, n_sel: 3, w: 8, layers: [win, sel+win]");
  ASSERT_OK(narrow);
  EXPECT_LT(Apart(Logits(*narrow), want, 0, 8), 1e-5);
}

// Of layers that take turns, those with a window of all tokens stay full.
TEST_F(ConvertTest, ChosenLayersStayFull) {
  const auto want = Logits(dense_);
  const auto some = Convert("l: 8, d: 4, l_sel: 8, n_sel: 3, w: 64, layers: [win, sel]");
  ASSERT_OK(some);
  const auto all = Convert("l: 8, d: 4, l_sel: 8, n_sel: 3, w: 64, layers: [sel]");
  ASSERT_OK(all);
  EXPECT_LT(Apart(Logits(*some), want, kExact, kTokens),
            Apart(Logits(*all), want, kExact, kTokens));
}

// The sum of |differences| of all logits.
double Distance(const std::vector<std::vector<float>>& a,
                const std::vector<std::vector<float>>& b) {
  double sum = 0;
  for (size_t t = 0; t < a.size(); ++t) {
    for (size_t v = 0; v < a[t].size(); ++v) sum += std::abs(double{a[t][v]} - b[t][v]);
  }
  return sum;
}

TEST_F(ConvertTest, IsFarNearerThanWithRandomBranches) {
  const auto want = Logits(dense_);
  for (const char* nsa : {"layers: [cmp+sel+win]", "layers: [cmp+sel+win], phi: mlp",
                          "layers: [win, cmp+sel]", "layers: [cmp+sel+win], gate: softmax"}) {
    SCOPED_TRACE(nsa);
    auto sparse = Convert(std::string(kSmall) + nsa);
    ASSERT_OK(sparse);
    const double converted = Distance(Logits(*sparse), want);
    Arena drawn(sparse->layout.get());
    Initialize(7, &drawn);
    for (const ParameterInfo& tensor : sparse->layout->tensors()) {
      const bool of_branches = tensor.name.find("W_K") != std::string::npos ||
                               tensor.name.find("W_V") != std::string::npos ||
                               tensor.name.find("gate.f") != std::string::npos ||
                               tensor.name.find("phi") != std::string::npos;
      if (of_branches) std::ranges::copy(drawn.of(tensor), sparse->parameters.of(tensor).begin());
    }
    EXPECT_LT(converted, 0.5 * Distance(Logits(*sparse), want));
  }
}

TEST_F(ConvertTest, EveryBranchHasTheDenseKeysAndValuesAndTheRestStays) {
  Save(", qkv_bias: true, qk_norm: true, qk_norm_weights: true");
  const auto sparse = Convert(std::string(kSmall) + "layers: [win, cmp+sel+win], phi: mlp");
  ASSERT_OK(sparse);
  for (const char* kind : {"K", "V"}) {
    for (const char* part : {".weight", ".bias"}) {
      const std::string name = std::string("blocks.1.attn.W_") + kind + "_";
      const auto want = dense_.Values(name + "win" + part);
      for (const char* branch : {"cmp", "sel", "win"}) {
        EXPECT_EQ(sparse->Values(name + branch + part), want) << name << branch << part;
      }
    }
  }
  for (const ParameterInfo& tensor : dense_.layout->tensors()) {
    EXPECT_EQ(sparse->Values(tensor.name), dense_.Values(tensor.name)) << tensor.name;
  }
}

TEST_F(ConvertTest, GatesBeginWithASumOfOneAndWithGradients) {
  for (const char* kind : {"sigmoid", "softmax"}) {
    for (const char* layers : {"cmp+sel+win", "cmp+sel", "cmp+win", "sel+win"}) {
      const auto sparse =
          Convert(std::string(kSmall) + "gate: " + kind + ", layers: [" + layers + "]");
      ASSERT_OK(sparse);
      double sum = 0, least = 1;
      for (const float bias : sparse->Values("blocks.0.attn.gate.fc2.bias")) {
        const double gate =
            std::string(kind) == "sigmoid" ? 1 / (1 + std::exp(-double{bias})) : std::exp(bias);
        sum += gate;
        least = std::min(least, gate);
      }
      EXPECT_NEAR(sum, 1, 1e-6) << kind << " " << layers;
      EXPECT_GT(least, 0.01) << kind << " " << layers;
      EXPECT_THAT(sparse->Values("blocks.0.attn.gate.fc2.weight"), testing::Each(0));
      EXPECT_THAT(sparse->Values("blocks.0.attn.gate.fc1.weight"),
                  testing::Contains(0.5f).Times(16));
    }
  }
}

// 0.1 % at 1 and 2 % at 4, as conversion.h says.
TEST(ConvertedPhi, IsNearlyTheMean) {
  constexpr int32_t kWidth = 16, kBlock = 8, kBlocks = 6;
  v1::JobSpec spec;
  spec.mutable_model()->set_d_k(kWidth);
  spec.mutable_model()->set_d_v(kWidth);
  spec.mutable_nsa()->set_l(kBlock);
  const auto start = [&](const char* part) {
    return StartOf(spec, std::string("blocks.0.attn.phi_k.") + part).values;
  };
  const auto pe = start("position"), w1 = start("fc1.weight"), b1 = start("fc1.bias"),
             w2 = start("fc2.weight"), b2 = start("fc2.bias");
  NsaShape shape{.batch = 1,
                 .seq_len = kBlock * kBlocks,
                 .n_heads = 1,
                 .n_kv_groups = 1,
                 .d_k = kWidth,
                 .d_v = kWidth,
                 .l = kBlock,
                 .d = kBlock,
                 .l_sel = kBlock,
                 .n_sel = 3,
                 .window = 1};
  std::mt19937 engine(3);
  std::uniform_real_distribution<float> noise(-2, 2);
  std::vector<float> x(shape.k_size()), hidden(kBlocks * kWidth), y(hidden.size()), mean(y.size());
  // The means of the blocks go from −4 to 4.
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = noise(engine) - 2.5f + static_cast<float>(i / (kBlock * kWidth));
  }
  ASSERT_OK(Compress({}, {.shape = shape,
                          .width = kWidth,
                          .phi = Phi::kAvg,
                          .x = std::span(x),
                          .y = std::span(mean)}));
  ASSERT_OK(Compress({}, {.shape = shape,
                          .width = kWidth,
                          .phi = Phi::kMlp,
                          .x = std::span(x),
                          .params = {.pe = std::span(pe),
                                     .w1 = std::span(w1),
                                     .b1 = std::span(b1),
                                     .w2 = std::span(w2),
                                     .b2 = std::span(b2)},
                          .hidden = std::span(hidden),
                          .y = std::span(y)}));
  double largest = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const double size = std::abs(mean[i]);
    EXPECT_LE(std::abs(y[i] - mean[i]), 1e-5 + 1.5 * 0.0139 / 16 * size * size * size) << mean[i];
    largest = std::max(largest, size);
  }
  EXPECT_GT(largest, 3);
}

TEST_F(ConvertTest, TheJobIsThePresetsAtItsBeginning) {
  const auto converted = ImportModel(dir_ / "out", dir_ / "sparse", {.sparse = v1::NsaSpec()});
  ASSERT_OK(converted);
  EXPECT_EQ(converted->step, 0);
  EXPECT_THAT(converted->layers, ElementsAre("win", "sel"));
  EXPECT_EQ(converted->parameters, dense_.layout->count());
  EXPECT_THAT(VerifyCheckpoint(dir_ / "sparse"), testing::IsEmpty());
  const auto state = ReadCheckpointState(dir_ / "sparse");
  ASSERT_OK(state);
  EXPECT_EQ(state->step(), 0);
  EXPECT_EQ(state->job_hash(), JobHash(state->spec()));
  const v1::NsaSpec& nsa = state->spec().nsa();
  EXPECT_THAT(nsa.layers(), ElementsAre("win", "sel"));
  EXPECT_EQ(nsa.l(), 32);
  EXPECT_EQ(nsa.d(), 16);
  EXPECT_EQ(nsa.l_sel(), 64);
  EXPECT_EQ(nsa.n_sel(), 16);
  EXPECT_EQ(nsa.w(), 256);
  EXPECT_EQ(nsa.phi(), v1::PHI_AVG);
  EXPECT_EQ(state->spec().model().SerializeAsString(), dense_.spec.model().SerializeAsString());
}

// The exported folder of a checkpoint becomes what the checkpoint itself does.
TEST_F(ConvertTest, AnExportIsConvertedAsItsCheckpointIs) {
  const std::string nsa = std::string(kSmall) + "layers: [cmp+sel+win, win]";
  const auto direct = Convert(nsa);
  ASSERT_OK(direct);
  ASSERT_OK(ExportModel(dir_ / "out", dir_ / "model"));
  ASSERT_OK(ImportModel(dir_ / "model", dir_ / "again", {.sparse = NsaOf(nsa)}));
  const auto again = LoadModel(dir_ / "again");
  ASSERT_OK(again);
  EXPECT_EQ(again->spec.SerializeAsString(), direct->spec.SerializeAsString());
  EXPECT_TRUE(std::ranges::equal(again->parameters.flat(), direct->parameters.flat()));
}

TEST_F(ConvertTest, ModelsOfOtherFamiliesAreExactInTheFirstTokens) {
  using Family = std::pair<const char*, const char*>;
  for (const auto& [architecture, type] :
       {Family("LlamaForCausalLM", "llama"), Family("Qwen2ForCausalLM", "qwen2"),
        Family("Qwen3ForCausalLM", "qwen3"), Family("MistralForCausalLM", "mistral")}) {
    SCOPED_TRACE(type);
    nlohmann::json config = ForeignConfig(architecture, type);
    config["max_position_embeddings"] = kTokens;
    ForeignFolder(config).Write(dir_ / type);
    ASSERT_OK(ImportModel(dir_ / type, dir_ / "full"));
    ASSERT_OK(ImportModel(dir_ / type, dir_ / "nsa",
                          {.sparse = NsaOf(std::string(kSmall) + "layers: [win, sel+win]")}));
    const auto full = LoadModel(dir_ / "full"), nsa = LoadModel(dir_ / "nsa");
    ASSERT_OK(full);
    ASSERT_OK(nsa);
    const auto want = Logits(*full), got = Logits(*nsa);
    EXPECT_LT(Apart(got, want, 0, kExact), 1e-5);
    EXPECT_GT(Apart(got, want, kExact, kTokens), 1e-4);
    fs::remove_all(dir_ / "full");
    fs::remove_all(dir_ / "nsa");
  }
}

// From a model's folder, and from a checkpoint that was moved since it was imported.
TEST_F(ConvertTest, TheTokenizerComesAlong) {
  nlohmann::json config = ForeignConfig("LlamaForCausalLM", "llama");
  config["max_position_embeddings"] = kTokens;
  ForeignFolder(config).Write(dir_ / "llama");
  const std::string text = R"({"model": {"vocab": {"a": 0, "</s>": 1}}})";
  std::ofstream(dir_ / "llama" / "tokenizer.json") << text;
  std::ofstream(dir_ / "llama" / "chat_template.jinja") << "{{ messages }}";
  ASSERT_OK(ImportModel(dir_ / "llama", dir_ / "imported"));
  fs::rename(dir_ / "imported", dir_ / "moved");
  for (const char* const from : {"llama", "moved"}) {
    SCOPED_TRACE(from);
    const fs::path sparse = dir_ / (std::string(from) + "-sparse");
    ASSERT_OK(ImportModel(dir_ / from, sparse, {.sparse = NsaOf(kSmall)}));
    std::ifstream copy(sparse / "tokenizer.json");
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(copy), {}), text);
    EXPECT_TRUE(fs::exists(sparse / "chat_template.jinja"));
    const auto state = ReadCheckpointState(sparse);
    ASSERT_OK(state);
    EXPECT_EQ(state->spec().data().tokenizer(), v1::TOKENIZER_BPE);
    EXPECT_EQ(state->spec().data().tokenizer_path(), sparse.string());
  }
}

TEST_F(ConvertTest, RefusesByNameWhatItCannotConvert) {
  const auto error = [&](const std::string& nsa) {
    return std::string(Convert(nsa).status().message());
  };
  EXPECT_THAT(error("n_sel: 2"), HasSubstr("n_sel: 2 (from 3 to 64"));
  EXPECT_THAT(error("l_sel: 24"), HasSubstr("l_sel: 24 (must be a multiple of d = 16)"));
  EXPECT_THAT(error("l: 128, l_sel: 8, d: 8"), HasSubstr("l: 128 (at most 8 times l_sel = 8"));
  EXPECT_THAT(error("layers: [win, dense]"), HasSubstr("unknown branch 'dense'"));
  EXPECT_THAT(error("layers: [win, full+sel]"), HasSubstr("full beside another branch"));
  EXPECT_THAT(error("layers: [win, sel, sel]"), HasSubstr("nsa.layers: 3 entries (at most"));
  Save("", "branches: [win], w: 32");
  EXPECT_THAT(error(""), HasSubstr("nsa.w: 32 (at least train.seq_len = 64"));
  Save("", "layers: [win, full], w: 20");
  for (const char* layer : {"sel", "sel+win", "full"}) {
    EXPECT_THAT(error(std::string("layers: [") + layer + "]"),
                HasSubstr(std::string("nsa.layers: ") + layer +
                          " in layer 0 (win, which has a window in the model that is converted)"));
  }
  EXPECT_THAT(error("w: 21"), HasSubstr("nsa.w: 21 (at most 20, the window of the model"));
  Save("", "layers: [win, sel], w: 64");
  EXPECT_THAT(error(""), HasSubstr("nsa.layers: [win, sel] (full or win alone"));
  Save(", rope_layers: window", "layers: [full, win], w: 64");
  EXPECT_THAT(error(""), HasSubstr("model.rope_layers: window with full layers (all"));
  EXPECT_FALSE(fs::exists(dir_ / "sparse"));
}

TEST_F(ConvertTest, ACheckpointIsNoFolderToImportAsItIs) {
  const auto imported = ImportModel(dir_ / "out", dir_ / "copy");
  EXPECT_THAT(imported,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a checkpoint already")));
  EXPECT_FALSE(fs::exists(dir_ / "copy"));
}

}  // namespace
}  // namespace nsa::train
