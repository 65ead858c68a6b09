#include "kernels/sparse/workspace.h"

#include <mutex>
#include <utility>

#include "kernels/sparse/sparse.h"

namespace lograd {
namespace {

std::mutex kept_mutex;
std::unique_ptr<Workspace> kept;

}  // namespace

Borrowed::Borrowed(std::size_t workers) {
    {
        const std::lock_guard<std::mutex> lock(kept_mutex);
        workspace_ = kept ? std::move(kept) : std::make_unique<Workspace>();
    }
    while (workspace_->workers.size() < workers) workspace_->workers.push_back(std::make_unique<Worker>());
}

Borrowed::~Borrowed() {
    const std::lock_guard<std::mutex> lock(kept_mutex);
    kept = std::move(workspace_);
}

void release_sparse_workspace() {
    const std::lock_guard<std::mutex> lock(kept_mutex);
    kept.reset();
}

}  // namespace lograd
