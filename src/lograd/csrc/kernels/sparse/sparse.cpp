#include "kernels/sparse/sparse.h"

#include <algorithm>

#include "base/kept.h"
#include "isa/table.h"
#include "kernels/sparse/lister.h"
#include "kernels/sparse/products.h"

namespace lograd {
namespace {

// A thread is worth its start from so many elements of G on.
constexpr std::size_t kWorthAThread = 16384;

int useful_threads(const Convolution& layer, int threads) {
    const std::size_t elements = layer.batch * layer.outputs * layer.y.output * layer.x.output;
    return std::max(1, std::min(threads, static_cast<int>(std::min<std::size_t>(elements / kWorthAThread, 1024))));
}

}  // namespace

bool sparse_backward(const SparseBackward& task) {
    const SparseKernels& table = kernels().sparse;
    const int threads = useful_threads(task.layer, task.threads);
    const Plan plan(task.layer, table.lanes);
    Borrowed<Workspace> work(static_cast<std::size_t>(threads));
    Products products(plan, task, table, *work, threads);
    products.prepare();
    if (!products.finite()) return false;
    Lister lister(plan, task, table, *work, threads);
    // Lists of as many bands as memory allows, then their products: the sums do not depend on how many these are.
    for (std::size_t band = 0; band < plan.bands.size();) {
        const std::size_t first = band;
        band = lister.list(first);
        products.add(lister, {first, band});
        if (!products.finite()) return false;
    }
    lister.finish();
    return true;
}

void release_sparse_workspace() { Borrowed<Workspace>::release(); }

}  // namespace lograd
