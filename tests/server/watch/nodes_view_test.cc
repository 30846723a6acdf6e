#include "server/watch/nodes_view.h"

#include "absl/strings/str_format.h"
#include "common/base/limits.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

TEST(NodesView, APageOfLargeMachinesEndsByBytesAndTheNextGoesOn) {
  std::vector<NodeView> nodes(90);
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].info.set_name(absl::StrFormat("n%02d", i));
    nodes[i].info.set_cuda_problem(std::string(900'000, 'x'));
  }
  v1::ListNodesRequest request;
  int seen = 0;
  do {
    const auto page = NodesView(nodes, {}, {}, request);
    ASSERT_OK(page.status());
    EXPECT_LT(page->ByteSizeLong(), limits::kPageBytes + 1'000'000);
    for (const v1::Node& node : page->nodes()) {
      EXPECT_EQ(node.info().name(), absl::StrFormat("n%02d", seen++));
    }
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(seen, 90);
}

}  // namespace
}  // namespace nsa::server
