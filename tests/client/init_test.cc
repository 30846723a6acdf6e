// init: the job file that it writes for data of each kind is accepted by preflight as it stands.
#include <zlib.h>

#include <filesystem>
#include <fstream>

#include "client/commands/init/look.h"
#include "client/commands/init/plan.h"
#include "client/show/human.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/job/load.h"
#include "common/preflight/preflight.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/client/nsactl_harness.h"
#include "tests/testing/parquet_footer.h"
#include "tests/testing/status_matchers.h"

namespace nsa::client {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

std::string Prose(size_t bytes, const std::string& line_end = "\n") {
  std::string text;
  for (int i = 0; text.size() < bytes; ++i) {
    text += "The " + std::to_string(i) + ". line says what a model may learn from it." + line_end;
    if (i % 10 == 9) text += line_end;
  }
  text.resize(bytes);
  return text;
}

std::string JsonLines(size_t bytes, const std::string& field) {
  std::string lines;
  for (int i = 0; lines.size() < bytes; ++i) {
    lines += nlohmann::json({{"id", i}, {field, Prose(300)}}).dump() + "\n";
  }
  return lines;
}

// uint16 tokens of a vocabulary like GPT-2's.
std::string Numpy(size_t tokens, uint16_t largest) {
  std::string header =
      "{'descr': '<u2', 'fortran_order': False, 'shape': (" + std::to_string(tokens) + ",), }";
  header.resize(117, ' ');
  std::string file = std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + "\n";
  for (size_t i = 0; i < tokens; ++i) {
    const uint16_t token = i == 7 ? largest : static_cast<uint16_t>(i % 5000);
    file += static_cast<char>(token & 0xFF);
    file += static_cast<char>(token >> 8);
  }
  return file;
}

class InitTest : public NsactlTest {
 protected:
  std::string Write(const std::string& name, const std::string& text) {
    const fs::path path = dir_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
  }

  Ran Init(std::vector<std::string> words) {
    words.insert(words.begin(), "init");
    words.insert(words.end(), {"--offline", "-o", job()});
    return RunAlone(words);
  }

  // Runs init and then validate on what it wrote, which is returned.
  v1::JobSpec Accepted(const std::vector<std::string>& words) {
    const Ran ran = Init(words);
    EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
    EXPECT_THAT(ran.out, StartsWith(job() + ": "));
    EXPECT_THAT(ran.err, HasSubstr("nsactl submit " + job() + " --watch"));
    const Ran checked = RunAlone({"validate", job(), "--offline"});
    EXPECT_EQ(checked.code, ExitCode::kOk) << checked.out;
    EXPECT_THAT(checked.out, Not(HasSubstr("warning"))) << Read(job());
    v1::JobSpec spec;
    EXPECT_OK(LoadJobYaml(job(), &spec));
    return spec;
  }

  std::string Refused(const std::string& file) {
    const Ran ran = Init({file});
    EXPECT_EQ(ran.code, ExitCode::kUsage);
    EXPECT_THAT(ran.err, HasSubstr("nothing was written"));
    EXPECT_FALSE(fs::exists(job()));
    return ran.err;
  }

  std::string job() const { return (dir_ / "job.yaml").string(); }

  static std::string Read(const std::string& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

TEST_F(InitTest, TakesATextWithCrlf) {
  const std::string text = Write("My Book.txt", Prose(300'000, "\r\n"));
  const v1::JobSpec spec = Accepted({text});
  EXPECT_EQ(spec.name(), "my-book");
  EXPECT_EQ(spec.data().source(), v1::DATA_SOURCE_TEXT);
  EXPECT_THAT(spec.data().path(), ElementsAre(text));
  EXPECT_GT(spec.train().save_every(), 0);
  EXPECT_GT(spec.data().val_fraction(), 0);
  EXPECT_EQ(spec.train().out_dir(), "out/{name}-{n}");
}

TEST_F(InitTest, TakesTenKilobytes) {
  const v1::JobSpec spec = Accepted({Write("little.txt", Prose(10'000))});
  EXPECT_LE(spec.train().seq_len(), 256);
  EXPECT_LE(int64_t{spec.train().steps()} * spec.train().batch_size() * spec.train().seq_len(),
            110'000)
      << "the text is read ten times at most";
}

// Of the ten gigabytes only the first MiB is on the disk; the rest is a hole in the file.
TEST_F(InitTest, TakesTenGigabytes) {
  const std::string text = Write("large.txt", Prose(1 << 20));
  fs::resize_file(text, 10'000'000'000);
  const v1::JobSpec spec = Accepted({text});
  EXPECT_DOUBLE_EQ(spec.data().val_fraction(), 0.01);
  const std::string file = Read(job());
  EXPECT_THAT(file, HasSubstr("about 10,000,000,000 tokens"));
}

TEST_F(InitTest, FindsTheTextOfJsonLines) {
  const v1::JobSpec spec = Accepted({Write("train.jsonl", JsonLines(400'000, "body"))});
  EXPECT_EQ(spec.data().source(), v1::DATA_SOURCE_JSONL);
  EXPECT_EQ(spec.data().text_field(), "body");
  const v1::JobSpec other = [&] {
    fs::remove(job());
    return Accepted({Write("chats.json", JsonLines(400'000, "text"))});
  }();
  EXPECT_EQ(other.data().source(), v1::DATA_SOURCE_JSONL) << "also under another name";
  EXPECT_FALSE(other.data().has_text_field());
}

TEST_F(InitTest, ALineThatIsNestedAMillionTimesIsOne) {
  const std::string deep = "{\"a\":" + std::string(1'000'000, '[') + std::string(1'000'000, ']') +
                           ",\"text\":\"The first.\"}\n";
  const Ran ran = Init({Write("deep.txt", deep + JsonLines(3'000'000, "text"))});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  v1::JobSpec spec;
  EXPECT_OK(LoadJobYaml(job(), &spec));
  EXPECT_EQ(spec.data().source(), v1::DATA_SOURCE_JSONL);
}

TEST_F(InitTest, TakesParquetByItsContent) {
  const std::string rows = "PAR1" + Prose(200'000) + "PAR1";
  EXPECT_EQ(Accepted({Write("rows.parquet", rows)}).data().source(), v1::DATA_SOURCE_PARQUET);
}

TEST_F(InitTest, FindsTheColumnOfParquetAndTheFieldOfAnArchive) {
  const std::string rows = ParquetFileOf({{"url", 9}, {"score", 60, false}, {"content", 50}});
  EXPECT_EQ(LookAtData({Write("rows.parquet", rows)}, {})->spec.data().text_field(), "content");
  const std::string usual = ParquetFileOf({{"content", 50}, {"text", 9}});
  EXPECT_FALSE(LookAtData({Write("usual.parquet", usual)}, {})->spec.data().has_text_field());

  const std::string packed = (dir_ / "train.jsonl.gz").string();
  const std::string lines = JsonLines(400'000, "body");
  gzFile file = gzopen(packed.c_str(), "wb");
  gzwrite(file, lines.data(), static_cast<unsigned>(lines.size()));
  gzclose(file);
  EXPECT_EQ(Accepted({packed}).data().text_field(), "body");
}

TEST_F(InitTest, TakesTokensWithTheirVocabulary) {
  const v1::JobSpec spec = Accepted({Write("gpt2.npy", Numpy(400'000, 50'256))});
  EXPECT_EQ(spec.data().source(), v1::DATA_SOURCE_TOKENS);
  EXPECT_EQ(spec.model().vocab(), 50'257);
  EXPECT_EQ(spec.data().separator(), "50256");
}

TEST_F(InitTest, TakesAnArchive) {
  const std::string archive = "\x28\xB5\x2F\xFD" + Prose(200'000);
  const v1::JobSpec spec = Accepted({Write("train.jsonl.zst", archive)});
  EXPECT_EQ(spec.data().source(), v1::DATA_SOURCE_JSONL);
}

TEST_F(InitTest, MixesFilesOfDifferentKinds) {
  const v1::JobSpec spec = Accepted(
      {Write("books.txt", Prose(300'000)), Write("chats.jsonl", JsonLines(100'000, "text"))});
  ASSERT_EQ(spec.data().mix_size(), 2);
  EXPECT_EQ(spec.data().mix(0).name(), "books");
  EXPECT_EQ(spec.data().mix(1).source(), v1::DATA_SOURCE_JSONL);
  EXPECT_NEAR(spec.data().mix(0).weight() / spec.data().mix(1).weight(), 3, 0.2);
}

TEST_F(InitTest, TakesTheFilesOfAFolder) {
  Write("books/a.txt", Prose(150'000));
  Write("books/b.txt", Prose(150'000));
  Write("books/notes.md", Prose(100));
  const Ran ran = Init({(dir_ / "books").string()});
  EXPECT_THAT(ran.err, HasSubstr("several kinds"));
  fs::remove(job());
  const v1::JobSpec spec = Accepted({(dir_ / "books").string()});
  EXPECT_THAT(spec.data().path(), ElementsAre((dir_ / "books" / "*.txt").string()));
  EXPECT_EQ(spec.name(), "books");
}

TEST_F(InitTest, StreamsFromTheHub) {
  const v1::JobSpec spec = Accepted({"hf://datasets/ada/books/data/*.parquet"});
  EXPECT_TRUE(spec.data().stream());
  EXPECT_EQ(spec.data().source(), v1::DATA_SOURCE_PARQUET);
  EXPECT_EQ(spec.name(), "books");
}

TEST_F(InitTest, TrainsAModelOnWithItsShape) {
  v1::CheckpointState state;
  state.set_step(10);
  v1::JobSpec& trained = *state.mutable_spec();
  trained.set_name("before");
  trained.mutable_model()->set_dim(96);
  trained.mutable_model()->set_n_layers(3);
  trained.mutable_model()->set_n_heads(6);
  trained.mutable_model()->set_n_kv_groups(2);
  trained.mutable_model()->set_d_k(16);
  trained.mutable_model()->set_d_v(16);
  trained.mutable_data()->set_tokenizer(v1::TOKENIZER_BYTE);
  trained.mutable_train()->set_seq_len(512);
  ApplyDefaults(&trained);
  const std::string text = *SerializeCheckpointState(state);
  Write("model/step-00000010/state.json", text);
  const std::string model = (dir_ / "model" / "step-00000010").string();
  const v1::JobSpec spec = Accepted({model, Write("letters.txt", Prose(300'000))});
  EXPECT_EQ(spec.restart().init(), model);
  EXPECT_EQ(spec.model().dim(), 96);
  EXPECT_EQ(spec.train().seq_len(), 512);
  EXPECT_EQ(spec.name(), "letters");
}

TEST_F(InitTest, RefusesWhatPreflightRefusesInItsWords) {
  EXPECT_THAT(Refused(Write("page.txt", "<!DOCTYPE html><html><body>" + Prose(9000))),
              HasSubstr("DATA_WRONG_FILE: data.path[0]: "));
  EXPECT_THAT(
      Refused(Write("pointer.txt", "version https://git-lfs.github.com/spec/v1\noid sha256:" +
                                       std::string(64, 'a') + "\nsize 123456\n")),
      HasSubstr("is a pointer of Git LFS"));
  EXPECT_THAT(Refused(Write("cat.png", std::string("\x89PNG\r\n\x1A\n\0\0\0\rIHDR", 16) +
                                           std::string(9000, 'x'))),
              HasSubstr("PNG"));
  EXPECT_THAT(Refused(Write("wide.txt", "\xFF\xFE" + Prose(9000))), HasSubstr("UTF-16"));
  EXPECT_THAT(Refused(Write("empty.txt", "")), HasSubstr("DATA_UNREADABLE"));
}

TEST_F(InitTest, RefusesWhatIsNoData) {
  EXPECT_THAT(Init({(dir_ / "missing").string()}).err, HasSubstr("No such file"));
  fs::create_directories(dir_ / "nothing");
  EXPECT_THAT(Init({(dir_ / "nothing").string()}).err, HasSubstr("a folder without data"));
  EXPECT_THAT(Init({"gs://bucket/x"}).err, HasSubstr("is neither a path nor a URL that is read"));
  Write("exported/config.json", "{}");
  Write("exported/model.safetensors", "");
  EXPECT_THAT(Init({(dir_ / "exported").string()}).err, HasSubstr("nsactl import"));
}

TEST_F(InitTest, KeepsAFileThatIsThere) {
  const std::string text = Write("a.txt", Prose(50'000));
  Write("job.yaml", "name: mine\n");
  const Ran kept = Init({text});
  EXPECT_NE(kept.code, ExitCode::kOk);
  EXPECT_THAT(kept.err, HasSubstr("is there already, and stays"));
  EXPECT_EQ(Read(job()), "name: mine\n");
  EXPECT_EQ(Init({text, "--force"}).code, ExitCode::kOk);
  EXPECT_THAT(Read(job()), HasSubstr("name: a\n"));
}

TEST_F(InitTest, SetsWhatIsAskedFor) {
  const v1::JobSpec spec = Accepted({Write("a.txt", Prose(200'000)), "--set", "train.steps=77",
                                     "--set", "name=mine", "--minutes", "1"});
  EXPECT_EQ(spec.train().steps(), 77);
  EXPECT_EQ(spec.name(), "mine");
}

TEST_F(InitTest, CommentsSayWhatWasChosenAndForWhat) {
  Accepted({Write("a.txt", Prose(200'000))});
  EXPECT_THAT(Read(job()),
              AllOf(StartsWith("# Written by nsactl init for 1 file, "), HasSubstr(" parameters\n"),
                    HasSubstr("  # held out for validation\n")));
}

TEST_F(InitTest, CountsTheTextOfJsonLinesWithoutTheirSyntax) {
  const std::string lines = JsonLines(400'000, "text");
  int64_t documents = 0;
  for (const char c : lines) documents += c == '\n' ? 1 : 0;
  const double text = 300.0 * static_cast<double>(documents);
  const std::string plain = Write("train.jsonl", lines);
  EXPECT_NEAR(static_cast<double>(LookAtData({plain}, {})->tokens), text, 0.01 * text);
  EXPECT_EQ(LookAtData({plain}, {})->in_words, "1 file, " + HumanBytes(std::ssize(lines)))
      << "the size is that of the file";
  v1::JobSpec other;
  EXPECT_EQ(LookAtData({Write("a.txt", Prose(400'000))}, other)->tokens, 400'000);
}

TEST_F(InitTest, StepsThatAreSetHaveNoReason) {
  Accepted({Write("a.txt", Prose(200'000)), "--set", "train.steps=123"});
  EXPECT_THAT(Read(job()), HasSubstr("  steps: 123\n"));
}

TEST_F(InitTest, AsksTheCoordinatorForItsMachine) {
  v1::Node node;
  node.set_state("READY");
  node.mutable_info()->set_name("gpu-1");
  node.mutable_info()->set_cores(32);
  node.mutable_info()->set_cuda_worker(true);
  v1::GpuInfo& gpu = *node.mutable_info()->add_gpus();
  gpu.set_name("NVIDIA H200");
  gpu.set_memory_bytes(int64_t{140} << 30);
  state().nodes = {node};
  state().report.set_accepted(true);
  const Ran ran = Run({"init", Write("a.txt", Prose(200'000)), "-o", job()});
  ASSERT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_THAT(Read(job()), AllOf(HasSubstr("one NVIDIA H200 of gpu-1"), HasSubstr("device: cuda"),
                                 HasSubstr("precision: bf16")));
  EXPECT_THAT(service().Requests("SubmitJob"), ElementsAre(HasSubstr("validate_only: true")));
}

TEST_F(InitTest, PrintsDocumentsAndNames) {
  const std::string text = Write("a.txt", Prose(100'000));
  EXPECT_EQ(Init({text, "--output", "name"}).out, job() + "\n");
  const auto document = nlohmann::json::parse(Init({text, "--force", "--output", "json"}).out);
  EXPECT_EQ(document["job_file"], job());
  EXPECT_GT(document["parameters"], 0);
}

v1::PreflightReport ReportOf(const std::string& rule, const std::string& field,
                             const std::string& fix, v1::Severity severity = v1::SEVERITY_ERROR) {
  v1::PreflightReport report;
  v1::Finding& finding = *report.add_findings();
  finding.set_rule(rule);
  finding.set_field(field);
  finding.set_fix(fix);
  finding.set_severity(severity);
  return report;
}

TEST(FollowFindings, DoesWhatAFixNames) {
  InitPlan plan;
  plan.spec.mutable_train()->set_save_every(500);
  const auto lost = ReportOf("LOST_WORK", "train.save_every", "set save_every: 57 or less, or …");
  EXPECT_TRUE(FollowFindings(lost, &plan));
  EXPECT_EQ(plan.spec.train().save_every(), 57);
  EXPECT_FALSE(FollowFindings(lost, &plan)) << "it has that value already";
  EXPECT_TRUE(
      FollowFindings(ReportOf("DECAY_ADVICE", "train.min_lr_ratio",
                              "try lr_schedule: linear with min_lr_ratio: 0", v1::SEVERITY_INFO),
                     &plan));
  EXPECT_EQ(plan.spec.train().lr_schedule(), v1::LR_SCHEDULE_LINEAR);
  EXPECT_TRUE(plan.spec.train().has_min_lr_ratio());
}

TEST(FollowFindings, TakesLessOfWhatIsTooMuch) {
  InitPlan plan;
  plan.spec.mutable_train()->set_batch_size(8);
  plan.spec.mutable_train()->set_seq_len(256);
  EXPECT_TRUE(FollowFindings(ReportOf("MEMORY_ESTIMATE_EXCEEDED", "train.batch_size", ""), &plan));
  EXPECT_EQ(plan.spec.train().batch_size(), 4);
  EXPECT_EQ(plan.spec.train().accumulate_grad_batches(), 2);
  EXPECT_TRUE(FollowFindings(ReportOf("VAL_TOO_SMALL", "data.val_fraction", ""), &plan));
  EXPECT_EQ(plan.spec.train().seq_len(), 128);
  EXPECT_EQ(plan.spec.nsa().w(), 32);
  EXPECT_TRUE(FollowFindings(ReportOf("HOST_MEMORY_EXCEEDED", "data.path", ""), &plan));
  EXPECT_TRUE(plan.spec.data().stream());
  EXPECT_FALSE(FollowFindings(ReportOf("HOST_MEMORY_EXCEEDED", "data.path", ""), &plan));
  EXPECT_FALSE(FollowFindings(ReportOf("DATA_WRONG_FILE", "data.path[0]", "convert it"), &plan));
}

// The passes through what is trained on; a tenth is held out.
TEST(PlanJob, TheTrainingTextIsReadFourTimesAndTheCommentSaysSo) {
  const InitMachine gpu{
      .in_words = "gpu", .device = "NVIDIA H200", .cores = 16, .memory_bytes = int64_t{140} << 30};
  InitData data;
  data.spec.mutable_data()->set_source(v1::DATA_SOURCE_TEXT);
  data.tokens = 900'000;
  InitPlan plan = PlanJob(data, gpu, 1800);
  const auto tokens = [&] {
    const v1::TrainSpec& train = plan.spec.train();
    return static_cast<double>(train.steps()) * train.batch_size() * train.seq_len();
  };
  EXPECT_DOUBLE_EQ(plan.spec.data().val_fraction(), 0.1);
  EXPECT_NEAR(tokens() / (0.9 * 900'000), 4, 0.1);
  EXPECT_THAT(JobFileText(plan, {}), HasSubstr("  # the training text is read about 4 times\n"));
  EXPECT_TRUE(FollowFindings(ReportOf("DATA_TOO_SMALL", "data.path", ""), &plan));
  EXPECT_THAT(JobFileText(plan, {}), HasSubstr("  # the training text is read about 2 times\n"));

  data.spec.mutable_data()->add_val_path("val.txt");
  plan = PlanJob(data, gpu, 1800);
  EXPECT_NEAR(tokens() / 900'000, 4, 0.1) << "all of it is trained on";
}

TEST(PlanJob, LargerDataOnALargerMachineIsALargerModel) {
  const InitMachine cpu{.in_words = "cpu", .cores = 2};
  const InitMachine gpu{
      .in_words = "gpu", .device = "NVIDIA H200", .cores = 16, .memory_bytes = int64_t{140} << 30};
  InitData data;
  data.spec.mutable_data()->set_source(v1::DATA_SOURCE_TEXT);
  data.tokens = 1'000'000;
  EXPECT_EQ(PlanJob(data, cpu, 240).spec.model().dim(), 128);
  EXPECT_EQ(PlanJob(data, gpu, 1800).spec.model().dim(), 128) << "the data is the limit";
  data.tokens = 200'000'000;
  EXPECT_EQ(PlanJob(data, cpu, 240).spec.model().dim(), 128) << "the time is the limit";
  const v1::JobSpec large = PlanJob(data, gpu, 1800).spec;
  EXPECT_GE(large.model().dim(), 512);
  EXPECT_EQ(large.train().muon_lr(), 4e-3);
  EXPECT_LE(large.train().steps(), 4'500);
  EXPECT_THAT(large.nsa().layers(), IsEmpty()) << "as every model that was measured at this size";
  EXPECT_EQ(large.model().rope_layers(), v1::ROPE_LAYERS_UNSPECIFIED);
  data.tokens = 2'000'000'000;
  const v1::JobSpec largest = PlanJob(data, gpu, 7200).spec;
  EXPECT_EQ(largest.model().dim(), 768);
  EXPECT_THAT(largest.nsa().layers(), ElementsAre("win", "sel"));
  EXPECT_EQ(largest.model().rope_layers(), v1::ROPE_LAYERS_WINDOW);
  EXPECT_EQ(largest.nsa().w(), 256);
}

}  // namespace
}  // namespace nsa::client
