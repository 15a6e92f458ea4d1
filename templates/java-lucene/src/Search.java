import fre.Event;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.lucene.analysis.standard.StandardAnalyzer;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.TextField;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.IndexWriter;
import org.apache.lucene.index.IndexWriterConfig;
import org.apache.lucene.queryparser.classic.ParseException;
import org.apache.lucene.queryparser.classic.QueryParser;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.ScoreDoc;
import org.apache.lucene.store.ByteBuffersDirectory;

public class Search {
    private static final List<String> TEXTS = List.of(
        "The quick brown fox jumps over the lazy dog",
        "A fox is a small animal of the dog family",
        "Foxglove is a plant",
        "Dogs and foxes seldom meet");

    private final StandardAnalyzer analyzer = new StandardAnalyzer();
    private final IndexSearcher searcher;

    public Search() throws IOException {
        ByteBuffersDirectory directory = new ByteBuffersDirectory();
        try (IndexWriter writer = new IndexWriter(directory, new IndexWriterConfig(analyzer))) {
            for (String text : TEXTS) {
                Document d = new Document();
                d.add(new TextField("text", text, Field.Store.YES));
                writer.addDocument(d);
            }
        }
        searcher = new IndexSearcher(DirectoryReader.open(directory));
    }

    public Map<String, Object> handle(Event event) throws IOException, ParseException {
        List<String> found = new ArrayList<>();
        for (ScoreDoc hit : searcher.search(new QueryParser("text", analyzer).parse(event.text()), 10).scoreDocs) {
            found.add(searcher.storedFields().document(hit.doc).get("text"));
        }
        return Map.of("of", TEXTS.size(), "found", found);
    }
}
