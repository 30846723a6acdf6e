// data.loss_on: assistant: the loss and the gradient are those of the mean over all answers of a
// step, however they are divided among micro-batches and ranks.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/train/step/executor_ranks.h"
#include "tests/worker/train/step/trainer_jobs.h"
#include "worker/train/step/executor.h"

namespace nsa::train {
namespace {

constexpr int kRows = 4;  // of a micro-batch of all ranks
constexpr int kMicroBatches = 2;
constexpr int kSequence = 24;

v1::JobSpec AnswersJob() {
  v1::JobSpec spec = TinyJob();
  spec.mutable_data()->set_loss_on(v1::LOSS_ON_ASSISTANT);
  spec.mutable_train()->set_batch_size(kRows);
  spec.mutable_train()->set_accumulate_grad_batches(kMicroBatches);
  return spec;
}

// Rows [first, first + rows) of a micro-batch. Row r of the step has `answers(r)` answers.
struct Rows {
  std::vector<int32_t> tokens, targets;
  TokenBatch batch() const { return {.tokens = tokens, .targets = targets}; }
};
using Answers = int (*)(int row);

Rows RowsOf(int micro, int first, int rows, Answers answers) {
  Rows all;
  for (int r = micro * kRows + first; r < micro * kRows + first + rows; ++r) {
    const std::vector<int32_t> tokens = TinyTokens(kSequence + 1, 11, static_cast<uint32_t>(r + 1));
    all.tokens.insert(all.tokens.end(), tokens.begin(), tokens.end() - 1);
    for (int t = 0; t < kSequence; ++t) {
      all.targets.push_back(t >= kSequence - answers(r) ? tokens[static_cast<size_t>(t) + 1] : -1);
    }
  }
  return all;
}

struct Sum {
  double loss = 0;
  double norm = 0;
  std::vector<float> gradients;
};

// A step up to its gradients on `world` ranks; what rank 0 has.
Sum StepOn(int world, Answers answers) {
  const v1::JobSpec spec = AnswersJob();
  std::vector<Sum> sums(static_cast<size_t>(world));
  OnExecutors(spec, world, [&](int rank, StepExecutor* executor) {
    v1::StepRecord record;
    int64_t all = 0;
    for (int r = 0; r < kRows * kMicroBatches; ++r) all += answers(r);
    record.set_answer_tokens(all);
    for (int micro = 0; micro < kMicroBatches; ++micro) {
      const int rows = kRows / world;
      ASSERT_OK(executor->AddMicroBatch(micro, RowsOf(micro, rank * rows, rows, answers).batch(),
                                        &record));
    }
    ASSERT_OK(executor->CompleteGradients(&record));
    const std::span<const float> gradients = executor->state().gradients.flat();
    sums[static_cast<size_t>(rank)] = {
        record.loss(), record.grad_norm(), {gradients.begin(), gradients.end()}};
  });
  double loss = 0;
  for (const Sum& sum : sums) loss += sum.loss / world;  // as Conclude() does
  sums[0].loss = loss;
  return sums[0];
}

// The same in plain loops over the rows, each alone: Σ of the losses of answers / their number.
Sum Expected(Answers answers) {
  const v1::JobSpec spec = AnswersJob();
  const ParameterLayout layout(spec);
  Arena parameters(&layout);
  Initialize(spec.train().seed(), &parameters);
  auto model =
      Model::Create(spec, {.batch = 1, .seq_len = kSequence, .training = true}, &parameters);
  EXPECT_OK(model);
  Exec exec;
  double loss = 0, count = 0;
  std::vector<double> sums(static_cast<size_t>(layout.size()));
  for (int r = 0; r < kRows * kMicroBatches; ++r) {
    Arena gradients(&layout);
    const Rows row = RowsOf(r / kRows, r % kRows, 1, answers);
    EXPECT_OK((*model)->Forward(exec, row.batch()));
    EXPECT_OK((*model)->Backward(exec, 1, &gradients));
    for (const float token : (*model)->token_losses()) loss += token;
    count += answers(r);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += gradients.flat()[i];
  }
  Sum expected = {.loss = loss / count};
  for (const double sum : sums) {
    expected.gradients.push_back(static_cast<float>(sum / count));
    expected.norm += sum / count * sum / count;
  }
  expected.norm = std::sqrt(expected.norm);
  return expected;
}

void ExpectEqual(const Sum& have, const Sum& want) {
  EXPECT_NEAR(have.loss, want.loss, 1e-5 * want.loss);
  EXPECT_NEAR(have.norm, want.norm, 1e-4 * want.norm);
  ASSERT_EQ(have.gradients.size(), want.gradients.size());
  double difference = 0;
  for (size_t i = 0; i < have.gradients.size(); ++i) {
    const double d = have.gradients[i] - want.gradients[i];
    difference += d * d;
  }
  EXPECT_LT(std::sqrt(difference), 1e-4 * want.norm);
}

constexpr Answers kUnequal = [](int row) { return 1 + row * 5 % 19; };

TEST(TrainerAnswers, LossAndGradientAreThoseOfTheMeanOverAllAnswers) {
  const Sum expected = Expected(kUnequal);
  ExpectEqual(StepOn(1, kUnequal), expected);
  ExpectEqual(StepOn(2, kUnequal), expected);
  ExpectEqual(StepOn(4, kUnequal), expected);
}

TEST(TrainerAnswers, ARankWithoutAnswersAddsNothing) {
  constexpr Answers first_rank = [](int row) { return row % kRows < kRows / 2 ? 3 + row : 0; };
  const Sum expected = Expected(first_rank);
  ExpectEqual(StepOn(1, first_rank), expected);
  ExpectEqual(StepOn(2, first_rank), expected);
}

TEST(TrainerAnswers, AStepWithoutAnswersHasNoLossAndNoGradient) {
  const Sum sum = StepOn(2, [](int) { return 0; });
  EXPECT_EQ(sum.loss, 0);
  EXPECT_EQ(sum.norm, 0);
}

TEST(TrainerAnswers, AllTokensAsAnswersAreAPlainStep) {
  const Sum answers = StepOn(1, [](int) { return kSequence; });
  const Sum expected = Expected([](int) { return kSequence; });
  ExpectEqual(answers, expected);
}

// A made-up set of 50 conversations: who is called by a name says what it says.
std::string Animals() {
  std::string lines;
  for (int i = 0; i < 50; ++i) {
    const bool cat = i % 2 == 0;
    absl::StrAppend(&lines, R"({"messages": [{"role": "user", "content": ")", cat ? "cat " : "dog ",
                    i, R"("}, {"role": "assistant", "content": ")", cat ? "meow" : "woof",
                    "\"}]}\n");
  }
  return lines;
}

v1::JobSpec AnimalsJob(const TempDir& dir, int64_t steps) {
  v1::JobSpec spec = Job(dir);
  std::ofstream(dir / "animals.jsonl") << Animals();
  v1::DataSpec* const data = spec.mutable_data();
  data->set_source(v1::DATA_SOURCE_JSONL);
  data->set_tokenizer(v1::TOKENIZER_BYTE);
  data->add_path(dir / "animals.jsonl");
  data->set_loss_on(v1::LOSS_ON_ASSISTANT);
  data->set_val_fraction(0.1);
  spec.mutable_model()->set_vocab(256);
  spec.mutable_nsa()->set_n_sel(24);  // all blocks
  spec.mutable_train()->set_seq_len(150);
  spec.mutable_train()->set_steps(steps);
  spec.mutable_train()->set_eval_every(steps);
  spec.mutable_train()->set_save_every(0);
  ApplyDefaults(&spec);
  return spec;
}

TEST(TrainerAnswers, TwoRanksTrainAsOne) {
  std::vector<std::vector<RankResult>> runs;
  for (const int world : {1, 2}) {
    const TempDir dir;
    v1::JobSpec spec = AnimalsJob(dir, 6);
    spec.mutable_train()->set_accumulate_grad_batches(2);
    runs.push_back(RunJob(dir, spec, {.world = world}));
    ASSERT_EQ(runs.back()[0].finished.outcome(), v1::OUTCOME_COMPLETED)
        << runs.back()[0].finished.text();
  }
  const RankResult &one = runs[0][0], &two = runs[1][0];
  ASSERT_EQ(one.steps.size(), 6u);
  for (size_t i = 0; i < one.steps.size(); ++i) {
    EXPECT_GT(one.steps[i].answer_tokens(), 0);
    EXPECT_LT(one.steps[i].answer_tokens(), one.steps[i].tokens());
    EXPECT_EQ(one.steps[i].answer_tokens(), two.steps[i].answer_tokens());
    EXPECT_NEAR(one.steps[i].loss(), two.steps[i].loss(), 1e-4);
    EXPECT_NEAR(one.steps[i].grad_norm(), two.steps[i].grad_norm(),
                1e-3 * one.steps[i].grad_norm());
  }
  ASSERT_EQ(one.evals.size(), 1u);
  EXPECT_EQ(one.evals[0].tokens(), two.evals[0].tokens());
  EXPECT_NEAR(one.evals[0].loss(), two.evals[0].loss(), 1e-4);
}

TEST(TrainerAnswers, ATunedModelAnswersAndEndsItsAnswer) {
  const TempDir dir;
  v1::JobSpec spec = AnimalsJob(dir, 300);
  for (const char* const question : {"cat 12", "dog 31"}) {
    spec.mutable_sample()->add_prompts(
        absl::StrCat("<|im_start|>user\n", question, "<|im_end|>\n<|im_start|>assistant\n"));
  }
  spec.mutable_sample()->set_tokens(14);
  spec.mutable_sample()->set_temperature(0);
  const RankResult result = RunJob(dir, spec)[0];
  ASSERT_EQ(result.finished.outcome(), v1::OUTCOME_COMPLETED) << result.finished.text();
  EXPECT_GT(result.steps.front().loss(), 3);
  EXPECT_LT(result.steps.back().loss(), 0.1);
  ASSERT_EQ(result.evals.size(), 1u);
  EXPECT_LT(result.evals[0].loss(), 0.3);
  ASSERT_EQ(result.samples.size(), 2u);
  EXPECT_EQ(result.samples[0].text(), "meow<|im_end|>");
  EXPECT_EQ(result.samples[1].text(), "woof<|im_end|>");
  EXPECT_GT(result.started.corpus().packing().answer_tokens(), 0);
}

}  // namespace
}  // namespace nsa::train
