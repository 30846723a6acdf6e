#include "worker/train/comm/gradient_reducer.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <vector>

#include "tests/worker/train/tiny_job.h"
#include "worker/train/model/model.h"

namespace nsa::train {
namespace {

std::vector<Bucket> Cut(BucketCutter* cutter, const std::vector<int64_t>& begins) {
  std::vector<Bucket> buckets;
  for (const int64_t begin : begins) {
    if (const auto bucket = cutter->Ready(begin)) buckets.push_back(*bucket);
  }
  return buckets;
}

TEST(PiecesOf, AreTheWholeBucketWhereEverybodyGetsTheSums) {
  EXPECT_EQ(PiecesOf({20, 65}, {}, 100), (std::vector<Piece>{{20, 65, Piece::kEveryRank}}));
  EXPECT_EQ(PiecesOf({20, 65}, {}, 20), (std::vector<Piece>{{20, 40, Piece::kEveryRank},
                                                            {40, 60, Piece::kEveryRank},
                                                            {60, 65, Piece::kEveryRank}}));
}

TEST(PiecesOf, GoToTheRanksOfTheShares) {
  const std::vector<int64_t> cuts = {0, 30, 30, 70, 100};
  EXPECT_EQ(PiecesOf({20, 75}, cuts, 100),
            (std::vector<Piece>{{20, 30, 0}, {30, 70, 2}, {70, 75, 3}}));
  EXPECT_EQ(PiecesOf({30, 70}, cuts, 25), (std::vector<Piece>{{30, 55, 2}, {55, 70, 2}}));
  EXPECT_EQ(PiecesOf({0, 10}, cuts, 100), (std::vector<Piece>{{0, 10, 0}}));
}

TEST(BucketCutter, CutsFromTheEndOnceThereIsEnough) {
  BucketCutter cutter(100, 30);
  const std::vector<Bucket> want = {{65, 100}, {20, 65}, {0, 20}};
  // The second step is cut in the same way as the first.
  for (int step = 0; step < 2; ++step) {
    EXPECT_EQ(Cut(&cutter, {95, 80, 65, 50, 20, 0}), want);
    EXPECT_FALSE(cutter.open());
  }
  EXPECT_TRUE(Cut(&cutter, {95, 80}).empty());
  EXPECT_FALSE(cutter.open()) << "nothing is cut yet";
  EXPECT_EQ(Cut(&cutter, {60}).size(), 1u);
  EXPECT_TRUE(cutter.open());
}

// As after a capture that failed in the middle of backward, when the step runs kernel by kernel.
TEST(BucketCutter, CutsAStepWholeAfterOneThatWasDropped) {
  BucketCutter cutter(100, 30);
  const std::vector<int64_t> parts = {95, 80, 65, 50, 20, 0};
  const std::vector<Bucket> want = Cut(&cutter, parts);
  for (size_t done = 1; done < parts.size(); ++done) {
    Cut(&cutter, {parts.begin(), parts.begin() + done});
    cutter.Reset();
    EXPECT_FALSE(cutter.open());
    EXPECT_EQ(Cut(&cutter, parts), want) << "dropped after " << done << " parts";
  }
}

TEST(BucketCutter, MakesOneBucketOfASmallModel) {
  BucketCutter cutter(100, 1000);
  EXPECT_EQ(Cut(&cutter, {95, 50, 0}), (std::vector<Bucket>{{0, 100}}));
}

// Gradients that are in a bucket must not change any more, and all gradients must be in a bucket.
TEST(Model, SaysThatGradientsAreFinalOnceTheyAre) {
  const v1::JobSpec spec = TinyJob();
  const ParameterLayout layout(spec);
  Arena parameters(&layout), gradients(&layout);
  Initialize(7, &parameters);
  const auto model = Model::Create(
      spec, {.batch = 2, .seq_len = spec.train().seq_len(), .training = true}, &parameters);
  ASSERT_TRUE(model.ok()) << model.status();
  const int64_t rows = int64_t{2} * spec.train().seq_len();
  const auto tokens = TinyTokens(rows, spec.model().vocab(), 1);
  const auto targets = TinyTokens(rows, spec.model().vocab(), 2);
  ASSERT_TRUE((*model)->Forward({}, {tokens, targets}).ok());

  struct Part {
    int64_t begin, end;
    std::vector<float> values;
  };
  std::vector<Part> parts;
  int64_t end = layout.size();
  const auto after_part = [&](int64_t begin) {
    EXPECT_LT(begin, end);
    const auto values = gradients.flat().subspan(begin, end - begin);
    parts.push_back({begin, end, {values.begin(), values.end()}});
    end = begin;
    return absl::OkStatus();
  };
  ASSERT_TRUE((*model)->Backward({}, 1.0f / static_cast<float>(rows), &gradients, after_part).ok());
  EXPECT_EQ(end, 0) << "every gradient is in a part";
  std::vector<int64_t> begins;
  for (const Part& part : parts) begins.push_back(part.begin);
  EXPECT_EQ(begins, (*model)->PartBegins());
  EXPECT_EQ(parts.size(), 6u) << "head, two halves of two blocks, embedding";
  for (const Part& part : parts) {
    const auto now = gradients.flat().subspan(part.begin, part.end - part.begin);
    EXPECT_TRUE(std::equal(now.begin(), now.end(), part.values.begin())) << "from " << part.begin;
    EXPECT_TRUE(std::any_of(now.begin(), now.end(), [](float g) { return g != 0; }));
  }
}

}  // namespace
}  // namespace nsa::train
