// Training on prepared data is training on the files that it was made of.
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/train/data/prepared/described.h"
#include "tests/worker/train/data/prepared/prepared_jobs.h"
#include "worker/train/data/corpus.h"
#include "worker/train/data/loader.h"
#include "worker/train/data/read/token_reader.h"

namespace nsa::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string CorpusOf(const v1::JobSpec& spec) {
  const v1::JobSpec full = Full(spec);
  const auto corpus = LoadCorpus(full.data(), full.model().vocab(), absl::Seconds(20));
  EXPECT_OK(corpus);
  return corpus.ok() ? Described(*corpus) : "";
}

TEST(Prepared, GivesTheSameCorpusAsTheFiles) {
  const TempDir dir;
  for (const auto& [name, spec] : JobsOfEverySource(dir)) {
    const auto prepared = PrepareInto(dir / "out", spec);
    ASSERT_OK(prepared) << name;
    const std::string wanted = CorpusOf(spec);
    EXPECT_THAT(wanted, HasSubstr("documents")) << name;
    EXPECT_EQ(CorpusOf(JobOnPrepared(spec, dir / "out")), wanted) << name;
    // The job that was written says the same.
    const auto written = LoadJobFile(prepared->job_file(), dir.path());
    ASSERT_OK(written);
    EXPECT_EQ(CorpusOf(written->spec), wanted) << name;
  }
}

TEST(Prepared, KeepsTheCountsOfWhatTheTestsAreAbout) {
  const TempDir dir;
  const auto jobs = JobsOfEverySource(dir);
  EXPECT_THAT(CorpusOf(jobs.at("jsonl, val_path and sets")),
              AllOf(Not(HasSubstr(" 0 dropped")), HasSubstr("2 inner separators")));
  EXPECT_THAT(CorpusOf(jobs.at("jsonl, chosen by a field")), HasSubstr(" 0 dropped"));
  EXPECT_THAT(CorpusOf(jobs.at("mixture")), HasSubstr("1 null"));
  EXPECT_THAT(CorpusOf(jobs.at("text, a fraction that holds out one")), HasSubstr(" 1 held out"));
}

std::unique_ptr<DataLoader> Open(const v1::JobSpec& spec, int32_t rank, int32_t world) {
  const v1::JobSpec full = Full(spec);
  auto loader = DataLoader::Open(
      {.spec = full, .rank = rank, .world_size = world, .vocab = full.model().vocab()});
  EXPECT_OK(loader);
  return loader.ok() ? *std::move(loader) : nullptr;
}

void ExpectSameBatch(const absl::StatusOr<Batch>& one, const absl::StatusOr<Batch>& other) {
  ASSERT_OK(one);
  ASSERT_OK(other);
  EXPECT_EQ(one->tokens, other->tokens);
  EXPECT_EQ(one->targets, other->targets);
  EXPECT_EQ(one->doc_start, other->doc_start);
  EXPECT_EQ(one->epoch, other->epoch);
  EXPECT_EQ(one->parts, other->parts);
}

TEST(Prepared, GivesTheSameBatchesForOneAndTwoRanksOverSeveralEpochs) {
  const TempDir dir;
  for (const auto& [name, spec] : JobsOfEverySource(dir)) {
    ASSERT_OK(PrepareInto(dir / "out", spec));
    const v1::JobSpec prepared = JobOnPrepared(spec, dir / "out");
    for (const auto& [rank, world] : {std::pair(0, 1), std::pair(0, 2), std::pair(1, 2)}) {
      const auto files = Open(spec, rank, world), folders = Open(prepared, rank, world);
      ASSERT_TRUE(files && folders) << name;
      const auto past = static_cast<int>(2 * files->info().rows / 4 + 8);
      for (int i = 0; i < past; ++i) ExpectSameBatch(files->Next(), folders->Next());
      ASSERT_EQ(files->eval_batches(), folders->eval_batches());
      for (int i = 0; i < files->eval_batches(); ++i) {
        ExpectSameBatch(files->Eval(i), folders->Eval(i));
      }
      ASSERT_EQ(files->eval_sets(), folders->eval_sets());
      for (int s = 0; s < files->eval_sets(); ++s) {
        ExpectSameBatch(files->EvalSet(s, 0), folders->EvalSet(s, 0));
      }
      // A cursor of the one fits the other.
      EXPECT_EQ(files->cursor().SerializeAsString(), folders->cursor().SerializeAsString());
      const auto resumed = Open(prepared, rank, world);
      ASSERT_OK(resumed->Seek(files->cursor()));
      ExpectSameBatch(files->Next(), resumed->Next());
      if (HasFailure()) FAIL() << name << ", rank " << rank << " of " << world;
    }
  }
}

TEST(Prepared, AShardIsAMegatronDataSet) {
  const TempDir dir;
  const auto jobs = JobsOfEverySource(dir);
  for (const auto& [name, width] : {std::pair("jsonl, fraction", 1), std::pair("tokens", 2)}) {
    ASSERT_OK(PrepareInto(dir / "out", jobs.at(name)));
    ReadProgress progress;
    const auto reader = TokenReader::Open(dir / "out/train.tokens/tokens-00000.bin", &progress);
    ASSERT_OK(reader);
    EXPECT_EQ((*reader)->layout().width, width);
    ASSERT_TRUE((*reader)->layout().document_ends);
    EXPECT_EQ((*reader)->layout().document_ends->size(), 17u);
  }
}

}  // namespace
}  // namespace nsa::train
