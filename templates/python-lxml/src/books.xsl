<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">
  <xsl:output method="html" indent="no"/>
  <xsl:template match="/books">
    <ol>
      <xsl:for-each select="book">
        <xsl:sort select="@year" data-type="number"/>
        <li><xsl:value-of select="title"/></li>
      </xsl:for-each>
    </ol>
  </xsl:template>
</xsl:stylesheet>
