#include "worker/train/step/ranks/same_data.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/train/comm/on_ranks.h"

namespace nsa::train {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using Parts = std::vector<DataPart>;

// What each rank with this data gets.
std::vector<absl::Status> Compare(const std::vector<Parts>& data) {
  std::vector<absl::Status> results(data.size());
  OnRanks(static_cast<int>(data.size()), [&](Comm* comm) {
    const auto rank = static_cast<size_t>(comm->rank());
    std::string fingerprint;
    for (const DataPart& part : data[rank]) {
      absl::StrAppend(&fingerprint, part.name.substr(part.name.rfind('/') + 1), part.content);
    }
    results[rank] = CheckSameData(fingerprint, data[rank], comm);
    EXPECT_OK(comm->Barrier("afterwards")) << "the ranks are still together";
  });
  return results;
}

auto Differs(const std::string& text) {
  return Each(StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(text)));
}

const Parts kData = {{"/d/a.txt", "10 bytes"}, {"/d/b.txt", "20 bytes"}, {"/d/a.txt", "hash 1"}};

TEST(SameData, EqualDataIsAccepted) {
  EXPECT_THAT(Compare({kData}), Each(StatusIs(absl::StatusCode::kOk, "")));
  EXPECT_THAT(Compare({kData, kData, kData}), Each(StatusIs(absl::StatusCode::kOk, "")));
  EXPECT_THAT(Compare({{}, {}}), Each(StatusIs(absl::StatusCode::kOk, "")));
}

TEST(SameData, TheFirstPartThatDiffersIsNamedOnEveryRank) {
  Parts other = kData;
  other[1].content = "21 bytes";
  other[2].content = "hash 2";
  EXPECT_THAT(Compare({kData, kData, other}),
              Differs("data differs between machines: /d/b.txt on rank 2 has 21 bytes, /d/b.txt on "
                      "rank 0 has 20 bytes; copy the same files to all machines"));
  other[1].content = kData[1].content;
  EXPECT_THAT(Compare({other, kData}),
              Differs("/d/a.txt on rank 1 has hash 1, /d/a.txt on rank 0 has hash 2"));
}

TEST(SameData, OfSeveralRanksTheLowestIsNamed) {
  Parts one = kData, two = kData;
  one[0].content = "11 bytes";
  two[0].content = "12 bytes";
  EXPECT_THAT(Compare({kData, one, two}), Differs("/d/a.txt on rank 1 has 11 bytes"));
  EXPECT_THAT(Compare({kData, kData, two}), Differs("/d/a.txt on rank 2 has 12 bytes"));
}

TEST(SameData, AFileThatIsMissingOrHasAnotherNameDiffers) {
  Parts fewer = kData, renamed = kData;
  fewer.pop_back();
  EXPECT_THAT(Compare({kData, fewer}),
              Differs("rank 1 has only 2 parts of it, /d/a.txt on rank 0 has hash 1"));
  EXPECT_THAT(Compare({fewer, kData}), Differs("rank 0 has only 2 parts of it"));
  renamed[1].name = "/d/c.txt";
  EXPECT_THAT(Compare({kData, renamed}), Differs("/d/c.txt on rank 1 has 20 bytes, /d/b.txt on"));
}

TEST(SameData, ALongNameIsCut) {
  Parts other = kData;
  other[0] = {std::string(5000, 'x'), "1 byte"};
  const std::vector<absl::Status> results = Compare({kData, other});
  EXPECT_THAT(results, Differs("/d/a.txt on rank 0 has 10 bytes; copy"));
  EXPECT_LT(results[0].message().size(), 1500u);
}

}  // namespace
}  // namespace nsa::train
