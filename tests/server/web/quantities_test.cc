// What the page is told of the quantities: quantities.golden, which is also what the made-up
// replies of the browser's checks have.
#include "server/web/quantities.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/record/quantities.h"
#include "gtest/gtest.h"
#include "tests/testing/full_records.h"

namespace nsa::server {
namespace {

TEST(QuantitiesJson, IsTheTableAsThePageReadsIt) {
  std::vector<std::string> rows;
  const Json table = QuantitiesJson();
  for (const Json& one : table["quantities"]) rows.push_back(Text(one));
  ExpectGolden("server/web/quantities.golden",
               absl::StrCat("{\"quantities\":[\n", absl::StrJoin(rows, ",\n"), "\n]}\n"));
}

TEST(QuantitiesJson, HasEachQuantityWithACurveAndNoOtherOfItsName) {
  std::set<std::string> curves;
  const Json table = QuantitiesJson();
  for (const Json& one : table["quantities"]) {
    if (!one["curve"]) continue;
    EXPECT_TRUE(curves.insert(one["name"]).second) << one;
  }
  for (const record::Quantity& quantity : record::kQuantities) {
    EXPECT_EQ(curves.contains(quantity.name), quantity.curve) << quantity.name;
  }
}

}  // namespace
}  // namespace nsa::server
