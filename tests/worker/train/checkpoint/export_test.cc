#include "common/export/export.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint_dir.h"
#include "common/checkpoint/safetensors_file.h"
#include "common/export/model_tensors.h"
#include "common/job/load.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/file_size_limit.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "worker/train/checkpoint/checkpoint.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

v1::JobSpec SmallJob(const std::string& nsa = "phi: mlp, gate: sigmoid") {
  v1::JobSpec spec;
  const auto loaded = LoadYamlText(
      "name: small\n"
      "model: {dim: 24, n_layers: 2, n_heads: 4, n_kv_groups: 2, "
      "d_k: 16, d_v: 32, mlp_ratio: 2, rope_scale: 2}\n"
      "nsa: {l: 8, d: 4, l_sel: 8, n_sel: 3, w: 8, " +
          nsa +
          "}\n"
          "data: {source: text, path: none.txt, tokenizer: byte}\n"
          "train: {seq_len: 32, batch_size: 2, seed: 7}\n",
      "small.yaml", &spec);
  EXPECT_OK(loaded);
  ApplyDefaults(&spec);
  return spec;
}

// A trained model and its checkpoint in a folder.
class ExportTest : public testing::Test {
 protected:
  void Save(const v1::JobSpec& spec) {
    layout_ = std::make_unique<ParameterLayout>(spec);
    parameters_ = Arena(layout_.get());
    Initialize(7, &parameters_);
    CheckpointWriterOptions options;
    options.out_dir = *Folder::Make(dir_ / "out");
    auto writer = CheckpointWriter::Open(options);
    ASSERT_OK(writer);
    v1::CheckpointState state;
    state.set_step(5);
    state.set_total_tokens(320);
    state.set_job_hash(JobHash(spec));
    state.set_val_loss(1.5);
    *state.mutable_spec() = spec;
    const auto flat = parameters_.flat();
    ASSERT_OK((*writer)->Save({layout_.get(), flat, flat, flat}, state));
    ASSERT_OK((*writer)->Drain());
  }
  void SetUp() override { Save(SmallJob()); }

  // Loads weights and moments as a resumed run does.
  absl::StatusOr<v1::CheckpointState> Load(const fs::path& checkpoint, Arena* weights,
                                           Arena* moments) {
    *weights = Arena(layout_.get());
    *moments = Arena(layout_.get());
    return LoadCheckpoint(checkpoint, "",
                          {.layout = layout_.get(),
                           .parameters = weights->flat(),
                           .first_moment = moments->flat(),
                           .second_moment = moments->flat()});
  }

  // Applies `edit` to a JSON file of the exported folder.
  void Edit(const std::string& name, const std::function<void(nlohmann::json*)>& edit) {
    nlohmann::json json = nlohmann::json::parse(Text(dir_ / "model" / name));
    edit(&json);
    std::ofstream(dir_ / "model" / name) << json.dump();
  }

  static std::string Text(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  const TempDir dir_;
  std::unique_ptr<ParameterLayout> layout_;
  Arena parameters_;
};

TEST_F(ExportTest, ListsTheTensorsOfEveryModelAsTheTrainerDoes) {
  for (const char* nsa :
       {"phi: mlp", "phi: avg", "branches: [cmp]", "branches: [sel, win]",
        "branches: [cmp, win], phi: mlp", "branches: [win]", "layers: [win, cmp+sel], phi: mlp",
        "layers: [full, win]", "layers: [full]"}) {
    const v1::JobSpec spec = SmallJob(nsa);
    const ParameterLayout layout(spec);
    const std::vector<ModelTensor> tensors = ModelTensors(spec);
    ASSERT_EQ(tensors.size(), layout.tensors().size()) << nsa;
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(tensors[i].name, layout.tensors()[i].name) << nsa;
      EXPECT_EQ(tensors[i].shape, layout.tensors()[i].shape) << nsa << " " << tensors[i].name;
      EXPECT_EQ(tensors[i].size, layout.tensors()[i].size) << nsa << " " << tensors[i].name;
    }
    EXPECT_EQ(FlatElements(tensors), layout.size()) << nsa;
  }
}

TEST_F(ExportTest, ListsTheTensorsThatKeysOfTheModelAddOrTakeAway) {
  for (const auto change : std::initializer_list<void (*)(v1::ModelSpec*)>{
           [](v1::ModelSpec* model) { model->set_tie_embeddings(true); },
           [](v1::ModelSpec* model) { model->set_qkv_bias(true); },
           [](v1::ModelSpec* model) {
             model->set_qk_norm(true);
             model->set_qk_norm_weights(true);
           },
           [](v1::ModelSpec* model) {
             model->set_mlp(v1::MLP_SWIGLU);
             model->set_mlp_dim(80);
           },
       }) {
    v1::JobSpec spec = SmallJob("layers: [win, cmp+sel]");
    change(spec.mutable_model());
    SCOPED_TRACE(spec.model().DebugString());
    const ParameterLayout layout(spec);
    const std::vector<ModelTensor> tensors = ModelTensors(spec);
    ASSERT_EQ(tensors.size(), layout.tensors().size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(tensors[i].name, layout.tensors()[i].name);
      EXPECT_EQ(tensors[i].shape, layout.tensors()[i].shape) << tensors[i].name;
    }
    EXPECT_EQ(FlatElements(tensors), layout.size());
  }
}

TEST_F(ExportTest, AnExportedModelComesBackBitForBitWithTheOptimizerAtItsStart) {
  for (const int64_t largest : {int64_t{5'000'000'000}, int64_t{4000}, int64_t{1}}) {
    const fs::path model = dir_ / ("model-" + std::to_string(largest));
    const fs::path back = dir_ / ("back-" + std::to_string(largest));
    const auto exported = ExportModel(dir_ / "out", model, {.largest_file = largest});
    ASSERT_OK(exported);
    EXPECT_EQ(exported->step, 5);
    EXPECT_EQ(exported->parameters, layout_->count());
    EXPECT_EQ(exported->files == 1, largest > 1'000'000);
    const auto imported = ImportModel(model, back);
    ASSERT_OK(imported);
    EXPECT_FALSE(imported->widened);
    EXPECT_TRUE(imported->training_state);
    EXPECT_EQ(VerifyCheckpoint(back), std::vector<std::string>());
    Arena weights, moments;
    const auto state = Load(back, &weights, &moments);
    ASSERT_OK(state);
    EXPECT_TRUE(std::equal(
        weights.flat().begin(), weights.flat().end(), parameters_.flat().begin(),
        [](float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }));
    for (const float moment : moments.flat()) ASSERT_EQ(moment, 0);
    EXPECT_EQ(state->step(), 5);
    EXPECT_EQ(state->job_hash(), JobHash(SmallJob()));
    EXPECT_EQ(state->spec().SerializeAsString(), SmallJob().SerializeAsString());
  }
}

TEST_F(ExportTest, FilesAreNoLargerThanTheLimitAndTheIndexNamesEveryTensor) {
  ASSERT_OK(ExportModel(dir_ / "out", dir_ / "model", {.largest_file = 20'000}));
  const auto index = nlohmann::json::parse(Text(dir_ / "model" / "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 4 * layout_->count());
  EXPECT_EQ(index["weight_map"].size(), layout_->tensors().size());
  EXPECT_FALSE(fs::exists(dir_ / "model" / "model.safetensors"));
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    const auto opened = SafetensorsFile::Open(dir_ / "model" / file.get<std::string>());
    ASSERT_OK(opened);
    EXPECT_TRUE((*opened)->tensors().contains(tensor)) << tensor << " in " << file;
    int64_t bytes = 0;
    for (const auto& [name, info] : (*opened)->tensors()) bytes += info.bytes();
    EXPECT_TRUE(bytes <= 20'000 || (*opened)->tensors().size() == 1) << file;
  }
}

TEST_F(ExportTest, InBf16EveryWeightIsRoundedToNearestAndTiesToEven) {
  const auto weights = parameters_.flat();
  weights[0] = 1.00390625f;   // halfway: down to the even 1
  weights[1] = 1.01171875f;   // halfway: up to the even 1.015625
  weights[2] = -1.00390637f;  // just above halfway
  weights[3] = std::numeric_limits<float>::quiet_NaN();
  weights[4] = 3.4e38f;  // rounds to infinity
  fs::remove_all(dir_ / "out");
  CheckpointWriterOptions options;
  options.out_dir = *Folder::Make(dir_ / "out");
  auto writer = CheckpointWriter::Open(options);
  ASSERT_OK(writer);
  v1::CheckpointState state;
  state.set_step(1);
  *state.mutable_spec() = SmallJob();
  ASSERT_OK((*writer)->Save({layout_.get(), weights, weights, weights}, state));
  ASSERT_OK((*writer)->Drain());
  const auto exported = ExportModel(dir_ / "out", dir_ / "model", {.type = TensorType::kBf16});
  ASSERT_OK(exported);
  EXPECT_EQ(exported->bytes, 2 * layout_->count());
  const auto imported = ImportModel(dir_ / "model", dir_ / "back");
  ASSERT_OK(imported);
  EXPECT_TRUE(imported->widened);
  Arena back, moments;
  ASSERT_OK(Load(dir_ / "back", &back, &moments));
  EXPECT_EQ(back.flat()[0], 1.0f);
  EXPECT_EQ(back.flat()[1], 1.015625f);
  EXPECT_EQ(back.flat()[2], -1.0078125f);
  EXPECT_TRUE(std::isnan(back.flat()[3]));
  EXPECT_TRUE(std::isinf(back.flat()[4]));
  for (size_t i = 5; i < weights.size(); ++i) {
    ASSERT_LE(std::abs(back.flat()[i] - weights[i]), std::abs(weights[i]) / 256) << i;
    ASSERT_EQ(std::bit_cast<uint32_t>(back.flat()[i]) & 0xffff, 0u) << i;
  }
}

TEST_F(ExportTest, WithoutATrainingStateTheJobIsWhatTheConfigurationSays) {
  ASSERT_OK(ExportModel(dir_ / "out", dir_ / "model"));
  fs::remove(dir_ / "model" / "checkpoint_state.json");
  const auto imported = ImportModel(dir_ / "model", dir_ / "back");
  ASSERT_OK(imported);
  EXPECT_FALSE(imported->training_state);
  Arena weights, moments;
  const auto state = Load(dir_ / "back", &weights, &moments);
  ASSERT_OK(state);
  EXPECT_EQ(state->step(), 0);
  EXPECT_EQ(state->spec().model().SerializeAsString(), SmallJob().model().SerializeAsString());
  EXPECT_EQ(state->spec().nsa().SerializeAsString(), SmallJob().nsa().SerializeAsString());
  EXPECT_EQ(state->spec().train().seq_len(), 32);
}

// A key that earlier versions wrote.
TEST_F(ExportTest, ASoftcapThatIsOnIsRefusedByName) {
  ASSERT_OK(ExportModel(dir_ / "out", dir_ / "model"));
  const auto imported_with = [&](const nlohmann::json& cap) {
    Edit("config.json", [&](nlohmann::json* json) { (*json)["final_logit_softcapping"] = cap; });
    fs::remove_all(dir_ / "back");
    return ImportModel(dir_ / "model", dir_ / "back").status();
  };
  for (const bool state : {true, false}) {
    if (!state) fs::remove(dir_ / "model" / "checkpoint_state.json");
    EXPECT_OK(imported_with(nullptr));
    EXPECT_OK(imported_with(0.0));
    EXPECT_THAT(
        imported_with(30),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr("final_logit_softcapping: 30 (must be null, because this version has no "
                           "softcap); import it with the version that wrote it")));
  }
}

TEST_F(ExportTest, TheModelCardHasTheLossesTheCurveAndTheJob) {
  std::ofstream csv(dir_ / "out" / "val.csv");
  csv << "step,val_loss,ppl,tokens,seconds,unix_seconds\n";
  for (int step = 1; step <= 7; ++step) csv << step << ',' << 10.0 / step << ",1,2,3,4\n";
  csv.close();
  ASSERT_OK(ExportModel(dir_ / "out", dir_ / "model"));
  const std::string card = Text(dir_ / "model" / "README.md");
  EXPECT_THAT(card, AllOf(HasSubstr("# small\n"), HasSubstr("| optimizer steps | 5 |"),
                          HasSubstr("1.5000 nats a token"), HasSubstr("| 5 | 2.0000 |"),
                          HasSubstr("`none.txt`"), HasSubstr("d_v: 32"),
                          HasSubstr("trust_remote_code=True"), HasSubstr("## What runs it"),
                          HasSubstr("| vLLM, "), HasSubstr("GGUF | no")));
  EXPECT_THAT(card, Not(HasSubstr("| 6 |"))) << "the checkpoint is of step 5";
}

TEST_F(ExportTest, TheByteTokenizerHasAByteATokenAndTheSeparatorFirst) {
  ASSERT_OK(ExportModel(dir_ / "out", dir_ / "model"));
  const auto json = nlohmann::json::parse(Text(dir_ / "model" / "tokenizer.json"));
  const auto& vocab = json["model"]["vocab"];
  EXPECT_EQ(vocab.size(), 256u);
  EXPECT_EQ(vocab["a"], 'a');
  EXPECT_EQ(vocab["Ġ"], ' ');
  EXPECT_EQ(vocab["Ċ"], '\n');
  EXPECT_EQ(vocab["<|separator|>"], 0);
  EXPECT_EQ(json["added_tokens"][0]["id"], 0);
  const auto config = nlohmann::json::parse(Text(dir_ / "model" / "config.json"));
  EXPECT_EQ(config["separator_token_id"], 0);
  EXPECT_EQ(config["auto_map"]["AutoModelForCausalLM"], "modeling_nsa.NsaForCausalLM");
  const auto generation = nlohmann::json::parse(Text(dir_ / "model" / "generation_config.json"));
  EXPECT_EQ(generation["use_cache"], true);
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    EXPECT_EQ(config[key], 0) << key;
    EXPECT_EQ(generation[key], 0) << key;
  }
  const auto tokenizer = nlohmann::json::parse(Text(dir_ / "model" / "tokenizer_config.json"));
  EXPECT_EQ(tokenizer["pad_token"], "<|separator|>");
  EXPECT_EQ(tokenizer["padding_side"], "left");
  EXPECT_EQ(tokenizer["model_input_names"], nlohmann::json::array({"input_ids", "attention_mask"}));
}

TEST_F(ExportTest, WithoutRoomNothingIsLeft) {
  absl::Status exported, imported;
  ASSERT_OK(ExportModel(dir_ / "out", dir_ / "whole"));
  {
    const FileSizeLimit limit(4096);
    exported = ExportModel(dir_ / "out", dir_ / "model").status();
    imported = ImportModel(dir_ / "whole", dir_ / "back").status();
  }
  for (const absl::Status& status : {exported, imported}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                 HasSubstr("File too large; free space there, or name a place")));
  }
  for (const auto& entry : fs::directory_iterator(dir_.path())) {
    EXPECT_THAT(entry.path().filename().string(), testing::AnyOf("out", "whole"));
  }
}

TEST_F(ExportTest, ATokenizerThatTheJobHasNoUseForIsRefused) {
  EXPECT_THAT(ExportModel(dir_ / "out", dir_ / "model", {.tokenizer = dir_.path()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "--tokenizer: " + dir_.path().string() +
                           " (the job's tokenizer is byte, which has no files); leave it out"));
  v1::JobSpec spec = SmallJob();
  spec.mutable_data()->set_source(v1::DATA_SOURCE_TOKENS);
  spec.mutable_data()->set_separator("none");
  spec.mutable_data()->clear_tokenizer();
  fs::remove_all(dir_ / "out");
  Save(spec);
  EXPECT_THAT(ExportModel(dir_ / "out", dir_ / "model", {.tokenizer = dir_.path()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("(the job's token files name no tokenizer); leave it out")));
  EXPECT_FALSE(fs::exists(dir_ / "model"));
  ASSERT_OK(ExportModel(dir_ / "out", dir_ / "model"));
}

// Masks, first and last tokens are those of the training, or the model is not exported.
TEST_F(ExportTest, TheSeparatorOfTokenFilesIsTheExportedOne) {
  v1::JobSpec spec = SmallJob();
  spec.mutable_data()->set_source(v1::DATA_SOURCE_TOKENS);
  spec.mutable_data()->set_tokenizer(v1::TOKENIZER_BYTE);
  for (const char* const separator : {"0", "none", "10"}) {
    spec.mutable_data()->set_separator(separator);
    fs::remove_all(dir_ / "out");
    fs::remove_all(dir_ / "model");
    Save(spec);
    const auto exported = ExportModel(dir_ / "out", dir_ / "model");
    if (separator == std::string("10")) {
      EXPECT_THAT(exported, StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr("data.separator: 10 (the tokenizer's is 0)")));
      EXPECT_FALSE(fs::exists(dir_ / "model"));
      continue;
    }
    ASSERT_OK(exported);
    const auto config = nlohmann::json::parse(Text(dir_ / "model" / "config.json"));
    EXPECT_EQ(config.contains("separator_token_id"), separator == std::string("0"));
    EXPECT_TRUE(fs::exists(dir_ / "model" / "tokenizer.json"));
  }
}

// transformers saves an exported model without its training state, which names the tokenizer.
TEST_F(ExportTest, WithoutATrainingStateTheTokenizerIsThatOfTheFolder) {
  v1::JobSpec spec = SmallJob();
  spec.mutable_model()->set_vocab(300);
  spec.mutable_data()->set_tokenizer(v1::TOKENIZER_BPE);
  spec.mutable_data()->set_tokenizer_path((dir_ / "mine").string());
  fs::remove_all(dir_ / "out");
  Save(spec);
  fs::create_directory(dir_ / "mine");
  std::ofstream(dir_ / "mine" / "tokenizer.json")
      << R"({"added_tokens": [{"id": 299, "content": "</s>", "special": true}], "model": {}})";
  ASSERT_OK(ExportModel(dir_ / "out", dir_ / "model"));
  fs::remove(dir_ / "model" / "checkpoint_state.json");
  ASSERT_OK(ImportModel(dir_ / "model", dir_ / "back"));
  const auto state = ReadCheckpointState(dir_ / "back");
  ASSERT_OK(state);
  EXPECT_EQ(state->spec().data().tokenizer(), v1::TOKENIZER_BPE);
  EXPECT_EQ(state->spec().data().tokenizer_path(), (dir_ / "back").string());
  EXPECT_TRUE(fs::exists(dir_ / "back" / "tokenizer.json"));
}

TEST_F(ExportTest, Gpt2sTokenizerTravelsWithTheModel) {
  v1::JobSpec spec = SmallJob();
  spec.mutable_data()->set_tokenizer(v1::TOKENIZER_GPT2);
  spec.mutable_data()->set_tokenizer_path((dir_ / "gpt2").string());
  fs::remove_all(dir_ / "out");
  Save(spec);
  EXPECT_THAT(ExportModel(dir_ / "out", dir_ / "model"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("--tokenizer")));
  fs::create_directory(dir_ / "other");
  std::ofstream(dir_ / "other" / "vocab.json")
      << R"({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3})";
  std::ofstream(dir_ / "other" / "merges.txt") << "#version: 0.2\na b\n";
  ASSERT_OK(ExportModel(dir_ / "out", dir_ / "model", {.tokenizer = dir_ / "other"}));
  const auto json = nlohmann::json::parse(Text(dir_ / "model" / "tokenizer.json"));
  EXPECT_EQ(json["model"]["merges"], nlohmann::json::array({"a b"}));
  EXPECT_EQ(json["added_tokens"][0]["id"], 3);
  ASSERT_OK(ImportModel(dir_ / "model", dir_ / "back"));
  EXPECT_EQ(ReadCheckpointState(dir_ / "back")->spec().data().tokenizer_path(),
            (dir_ / "back").string());
  std::ofstream(dir_ / "other" / "vocab.json") << R"({"a": 0, "b": 7})";
  EXPECT_THAT(ExportModel(dir_ / "out", dir_ / "model2", {.tokenizer = dir_ / "other"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'b': 7 (from 0 to 1")));
}

TEST_F(ExportTest, ATokenizerTravelsWithoutByteOrderMarksAndItsMergesWithoutCrlf) {
  v1::JobSpec spec = SmallJob();
  spec.mutable_data()->set_tokenizer(v1::TOKENIZER_GPT2);
  spec.mutable_data()->set_tokenizer_path(dir_.path().string());
  fs::remove_all(dir_ / "out");
  Save(spec);
  const std::string mark = "\xEF\xBB\xBF";
  std::ofstream(dir_ / "vocab.json", std::ios::binary)
      << mark << R"({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3})";
  std::ofstream(dir_ / "merges.txt", std::ios::binary) << mark << "#version: 0.2\r\na b\r\n";
  ASSERT_OK(ExportModel(dir_ / "out", dir_ / "model"));
  const auto json = nlohmann::json::parse(Text(dir_ / "model" / "tokenizer.json"));
  EXPECT_EQ(json["model"]["merges"], nlohmann::json::array({"a b"}));
  EXPECT_EQ(Text(dir_ / "model" / "vocab.json").front(), '{');
  EXPECT_EQ(Text(dir_ / "model" / "merges.txt").front(), '#');
  fs::remove(dir_ / "vocab.json");
  std::ofstream(dir_ / "tokenizer.json", std::ios::binary)
      << mark << R"({"model": {"vocab": {"a": 0, "<|endoftext|>": 5}}})";
  ASSERT_OK(ExportModel(dir_ / "out", dir_ / "model2"));
  EXPECT_EQ(Text(dir_ / "model2" / "tokenizer.json").front(), '{');
}

TEST_F(ExportTest, ATokenizerThatCannotBeReadIsAnError) {
  v1::JobSpec spec = SmallJob();
  spec.mutable_data()->set_tokenizer(v1::TOKENIZER_GPT2);
  spec.mutable_data()->set_tokenizer_path((dir_ / "gpt2").string());
  fs::remove_all(dir_ / "out");
  Save(spec);
  fs::create_directories(dir_ / "gpt2" / "vocab.json");
  EXPECT_THAT(ExportModel(dir_ / "out", dir_ / "model"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("vocab.json: cannot be read")));
  fs::remove(dir_ / "gpt2" / "vocab.json");
  std::ofstream(dir_ / "gpt2" / "vocab.json") << R"({"a": 0, "b": 1, "<|endoftext|>": 2})";
  std::ofstream(dir_ / "gpt2" / "merges.txt") << "#version: 0.2\na \xff\n";
  EXPECT_THAT(ExportModel(dir_ / "out", dir_ / "model"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("merges.txt: not UTF-8")));
}

TEST_F(ExportTest, AJobsOwnTokenizerJsonTravelsAsItIs) {
  v1::JobSpec spec = SmallJob();
  spec.mutable_data()->set_tokenizer(v1::TOKENIZER_GPT2);
  spec.mutable_data()->set_tokenizer_path((dir_ / "mine.json").string());
  fs::remove_all(dir_ / "out");
  Save(spec);
  for (
      const char* text :
      {R"({"model": {"vocab": {"a": 0, "<|endoftext|>": 5}}})",
       R"({"model": {"vocab": {}}, "added_tokens": [7, {"content": "<|end_of_text|>", "id": 5}]})"}) {
    std::ofstream(dir_ / "mine.json") << text;
    fs::remove_all(dir_ / "model");
    ASSERT_OK(ExportModel(dir_ / "out", dir_ / "model"));
    EXPECT_EQ(Text(dir_ / "model" / "tokenizer.json"), text);
    EXPECT_FALSE(fs::exists(dir_ / "model" / "vocab.json"));
    const auto config = nlohmann::json::parse(Text(dir_ / "model" / "config.json"));
    EXPECT_EQ(config["separator_token_id"], 5);
  }
  fs::remove(dir_ / "mine.json");
  ASSERT_OK(ImportModel(dir_ / "model", dir_ / "back"));
  EXPECT_EQ(ReadCheckpointState(dir_ / "back")->spec().data().tokenizer_path(),
            (dir_ / "back").string());
  for (const char* text : {"[]", "{\"model\": 7}", "{\"added_tokens\": [{\"content\": 3}]}"}) {
    std::ofstream(dir_ / "mine.json") << text;
    EXPECT_THAT(ExportModel(dir_ / "out", dir_ / "model2"),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("mine.json: no token")));
  }
}

TEST_F(ExportTest, TheTokenizerOfBpeTravelsAsItIsAndIsFoundAgain) {
  v1::JobSpec spec = SmallJob();
  spec.mutable_data()->set_tokenizer(v1::TOKENIZER_BPE);
  spec.mutable_data()->set_tokenizer_path((dir_ / "mine").string());
  fs::remove_all(dir_ / "out");
  Save(spec);
  EXPECT_THAT(ExportModel(dir_ / "out", dir_ / "model"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("--tokenizer")));
  fs::create_directory(dir_ / "mine");
  std::ofstream(dir_ / "mine" / "vocab.json") << "{}";  // beside it, as Qwen's has
  const std::string text =
      R"({"added_tokens": [{"id": 6, "content": "</s>", "special": true}], "model": {}})";
  std::ofstream(dir_ / "mine" / "tokenizer.json") << text;
  ASSERT_OK(ExportModel(dir_ / "out", dir_ / "model"));
  EXPECT_EQ(Text(dir_ / "model" / "tokenizer.json"), text);
  const auto config = nlohmann::json::parse(Text(dir_ / "model" / "tokenizer_config.json"));
  EXPECT_EQ(config["bos_token"], "</s>");
  EXPECT_EQ(config["pad_token"], "</s>");
  fs::remove_all(dir_ / "mine");
  ASSERT_OK(ImportModel(dir_ / "model", dir_ / "back"));
  EXPECT_EQ(ReadCheckpointState(dir_ / "back")->spec().data().tokenizer_path(),
            (dir_ / "back").string());
}

// Import copies the template, so the folder may go; export writes it again, with its tokens.
TEST_F(ExportTest, TheChatTemplateOfATokenizerTravelsBothWays) {
  v1::JobSpec spec = SmallJob();
  spec.mutable_data()->set_tokenizer(v1::TOKENIZER_BPE);
  spec.mutable_data()->set_tokenizer_path((dir_ / "mine").string());
  fs::remove_all(dir_ / "out");
  Save(spec);
  fs::create_directory(dir_ / "mine");
  std::ofstream(dir_ / "mine" / "tokenizer.json")
      << R"({"added_tokens": [{"id": 6, "content": "</s>", "special": true},
                              {"id": 9, "content": "<end>", "special": true}], "model": {}})";
  const std::string chat = "{{ bos_token }}[INST] é\n";
  std::ofstream(dir_ / "mine" / "tokenizer_config.json") << nlohmann::json{
      {"chat_template", "old"}, {"bos_token", "<s>"}, {"eos_token", {{"content", "<end>"}}}};
  std::ofstream(dir_ / "mine" / "chat_template.jinja") << chat;
  ASSERT_OK(ExportModel(dir_ / "out", dir_ / "model"));
  fs::remove_all(dir_ / "mine");
  ASSERT_OK(ImportModel(dir_ / "model", dir_ / "back"));
  fs::remove_all(dir_ / "model");
  ASSERT_OK(ExportModel(dir_ / "back", dir_ / "again"));
  const auto config = nlohmann::json::parse(Text(dir_ / "again" / "tokenizer_config.json"));
  EXPECT_EQ(config["chat_template"], chat);
  EXPECT_EQ(config["bos_token"], "<s>");
  EXPECT_EQ(config["eos_token"], "<end>");
  EXPECT_EQ(config["pad_token"], "</s>");
  // Ends a generated text at the end of an answer and at the end of a document.
  const auto generation = nlohmann::json::parse(Text(dir_ / "again" / "generation_config.json"));
  EXPECT_EQ(generation["eos_token_id"], nlohmann::json({9, 6}));
  EXPECT_EQ(generation["pad_token_id"], 6);
}

// With byte_fallback the token that the post_processor puts before a text begins documents, and
// another ends them.
TEST_F(ExportTest, ATokenizerMayHaveOneTokenThatBeginsTextsAndOneThatEndsThem) {
  v1::JobSpec spec = SmallJob();
  spec.mutable_data()->set_tokenizer(v1::TOKENIZER_BPE);
  spec.mutable_data()->set_tokenizer_path((dir_ / "mine.json").string());
  fs::remove_all(dir_ / "out");
  Save(spec);
  std::ofstream(dir_ / "mine.json") << R"({"post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A"}},
                 {"SpecialToken": {"id": "</s>", "type_id": 0}}]},
      "model": {"byte_fallback": true}, "added_tokens": [
      {"id": 1, "content": "<s>", "special": true}, {"id": 2, "content": "</s>", "special": true}]})";
  ASSERT_OK(ExportModel(dir_ / "out", dir_ / "model"));
  const auto config = nlohmann::json::parse(Text(dir_ / "model" / "config.json"));
  EXPECT_EQ(config["separator_token_id"], 1);
  EXPECT_EQ(config["bos_token_id"], 1);
  EXPECT_EQ(config["eos_token_id"], 2);
  EXPECT_EQ(config["pad_token_id"], 2);
}

TEST_F(ExportTest, RefusesAFolderInUseAndLeavesNothingBehind) {
  fs::create_directory(dir_ / "model");
  std::ofstream(dir_ / "model" / "x") << "x";
  EXPECT_THAT(ExportModel(dir_ / "out", dir_ / "model"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("name another")));
  EXPECT_THAT(ExportModel(dir_ / "nothing", dir_ / "new"), StatusIs(absl::StatusCode::kNotFound));
  std::ofstream(dir_ / "out/checkpoints/step-00000005/model.safetensors", std::ios::app) << "x";
  EXPECT_THAT(ExportModel(dir_ / "out/checkpoints/step-00000005", dir_ / "new"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("model.safetensors")));
  for (const auto& entry : fs::directory_iterator(dir_.path())) {
    EXPECT_THAT(entry.path().filename().string(), testing::AnyOf("model", "out"));
  }
}

TEST_F(ExportTest, AFolderThatLiesIsRefusedWithTheReason) {
  struct Lie {
    std::string file;
    std::function<void(nlohmann::json*)> edit;
    std::string reason;
  };
  const auto set = [](const char* key, const nlohmann::json& value) {
    return [key, value](nlohmann::json* json) { (*json)[key] = value; };
  };
  const std::vector<Lie> lies = {
      {"config.json", set("model_type", "gemma"),
       "architectures: [\"NsaForCausalLM\"] (must be one of Llama"},
      {"config.json", set("hidden_size", 1 << 30),
       "hidden_size: 1073741824 (must be a whole number from 1 to 32768)"},
      {"config.json", set("hidden_size", "24"), "hidden_size: \"24\""},
      {"config.json", set("num_attention_heads", 3), "n_kv_groups"},
      {"config.json", set("intermediate_size", 25), "a multiple of 24"},
      {"config.json", set("rope_base", 0.5), "greater than 1"},
      {"config.json", set("block_stride", 3), "config.json: d: 3"},
      {"config.json", set("layers", {"cmp", "dense"}), "its branches joined by +"},
      {"config.json", set("tie_word_embeddings", true), "tie_word_embeddings"},
      {"config.json", set("window", 9), "checkpoint_state.json has 8"},
      {"config.json", set("hidden_act", "gelu"), "hidden_act: \"gelu\" (must be silu or relu2)"},
      {"config.json", set("hidden_act", "relu2"), "checkpoint_state.json has \"silu\""},
      {"config.json", set("qk_norm", 1), "qk_norm: 1 (must be true or false)"},
      {"config.json", set("qk_norm", true), "checkpoint_state.json has false"},
      {"checkpoint_state.json", set("step", 6), "hash"},
      {"model.safetensors.index.json", set("weight_map", {{"a", "../x"}}), "../x"},
      {"model.safetensors.index.json", set("weight_map", nlohmann::json::object()), "absent"},
  };
  for (const Lie& lie : lies) {
    fs::remove_all(dir_ / "model");
    ASSERT_OK(ExportModel(dir_ / "out", dir_ / "model", {.largest_file = 20'000}));
    Edit(lie.file, lie.edit);
    const auto imported = ImportModel(dir_ / "model", dir_ / "back");
    EXPECT_FALSE(imported.ok()) << lie.reason;
    EXPECT_THAT(std::string(imported.status().message()), HasSubstr(lie.reason));
    EXPECT_FALSE(fs::exists(dir_ / "back"));
  }
}

TEST_F(ExportTest, AModelWithOtherFunctionsKeepsThemWithoutItsTrainingState) {
  v1::JobSpec spec = SmallJob();
  spec.mutable_model()->set_activation(v1::ACTIVATION_RELU2);
  spec.mutable_model()->set_qk_norm(true);
  Save(spec);
  ASSERT_OK(ExportModel(dir_ / "out", dir_ / "model"));
  fs::remove(dir_ / "model" / "checkpoint_state.json");
  ASSERT_OK(ImportModel(dir_ / "model", dir_ / "back"));
  const auto state = ReadCheckpointState(dir_ / "back");
  ASSERT_OK(state);
  EXPECT_EQ(state->spec().model().activation(), v1::ACTIVATION_RELU2);
  EXPECT_TRUE(state->spec().model().qk_norm());
}

TEST_F(ExportTest, FullLayersComeBackWithAndWithoutTheTrainingState) {
  using testing::ElementsAre;
  const v1::JobSpec spec = SmallJob("layers: [full, cmp+win]");
  Save(spec);
  ASSERT_OK(ExportModel(dir_ / "out", dir_ / "model"));
  const auto config = nlohmann::json::parse(Text(dir_ / "model" / "config.json"));
  EXPECT_EQ(config["layers"], nlohmann::json({"full", "cmp+win"}));
  EXPECT_EQ(config["window"], spec.nsa().w());
  for (const bool state : {true, false}) {
    if (!state) fs::remove(dir_ / "model" / "checkpoint_state.json");
    fs::remove_all(dir_ / "back");
    ASSERT_OK(ImportModel(dir_ / "model", dir_ / "back"));
    const auto back = ReadCheckpointState(dir_ / "back");
    ASSERT_OK(back);
    EXPECT_THAT(back->spec().nsa().layers(), ElementsAre("full", "cmp+win")) << state;
  }
}

TEST_F(ExportTest, AFolderOfAnOlderVersionHasTheDefaults) {
  ASSERT_OK(ExportModel(dir_ / "out", dir_ / "model"));
  Edit("config.json", [](nlohmann::json* json) {
    EXPECT_EQ(json->erase("hidden_act") + json->erase("qk_norm"), 2u);
  });
  EXPECT_OK(ImportModel(dir_ / "model", dir_ / "back"));
}

TEST_F(ExportTest, TensorsOfAnotherModelAreRefusedByName) {
  ASSERT_OK(ExportModel(dir_ / "out", dir_ / "model"));
  fs::remove(dir_ / "model" / "checkpoint_state.json");
  Edit("config.json", [](nlohmann::json* json) { (*json)["num_hidden_layers"] = 3; });
  EXPECT_THAT(ImportModel(dir_ / "model", dir_ / "back"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("blocks.2.norm1.weight is [absent]")));
  Edit("config.json", [](nlohmann::json* json) { (*json)["num_hidden_layers"] = 1; });
  EXPECT_THAT(ImportModel(dir_ / "model", dir_ / "back"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not in the model")));
  Edit("config.json", [](nlohmann::json* json) {
    (*json)["num_hidden_layers"] = 2;
    (*json)["vocab_size"] = 255;
  });
  EXPECT_THAT(
      ImportModel(dir_ / "model", dir_ / "back"),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("embed.weight is [256, 24]")));
}

}  // namespace
}  // namespace nsa::train
